//! What outlives the process: organisations, projects and API keys. Does not know HTTP, requests or models.
//!
//! [`open`] gives a [`Store`]. All databases answer the same trait, and one suite of tests is written against it.
#![forbid(unsafe_code)]

mod error;
mod key;
mod open;
mod sqlite;
mod store;

pub use error::StoreError;
pub use key::{ApiKey, CreatedKey, KeyChange, KeyDigest, KeyLimits, KeyTable, NewKey, digest_of};
pub use open::{open, open_existing};
pub use sqlite::SqliteStore;
pub use store::{MAX_KEYS, MAX_NAME_BYTES, Store, StoreFuture};
