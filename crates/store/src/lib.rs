//! What outlives the process: organisations, projects and API keys with their limits, and the ledger of what requests used. Does
//! not know HTTP, requests or models.
//!
//! [`open`] gives a [`Store`]. All databases answer the same trait, and one suite of tests is run against each. A [`Journal`] has the
//! entries of the ledger that are not in the database yet.
#![forbid(unsafe_code)]

mod csv;
mod error;
mod journal;
mod key;
mod ledger;
mod limits;
mod money;
mod open;
mod sql;
mod store;

pub use csv::csv_field;
pub use error::StoreError;
pub use journal::{Journal, Slot};
pub use key::{ApiKey, CreatedKey, KeyChange, KeyDigest, KeyTable, NewKey, digest_of};
pub use ledger::{DailyTotal, LedgerEntry, MAX_USAGE_ROWS, Outcome, UsageGroup, UsageQuery, UsageRow};
pub use limits::{LimitChange, LimitKind, LimitScope, Limits};
pub use money::{Cost, MAX_PRICE, Prices, parse_millionths};
pub use open::{file_of, open, open_existing};
pub use store::{MAX_KEYS, MAX_NAME_BYTES, Store, StoreFuture};
