//! Persistent state: organisations, projects and API keys with their limits, the ledger of usage, the audit
//! of residency rules, answers for repeated requests, and objects that tenants keep between requests. Does
//! not know HTTP, requests or models.
//!
//! [`open`] returns a [`Store`]. All databases implement the same trait and pass the same test suite. A
//! [`Journal`] holds the ledger entries that are not in the database yet.
#![forbid(unsafe_code)]

mod answers;
mod audit;
mod bounds;
mod clock;
mod csv;
mod error;
mod future;
mod journal;
mod key;
mod ledger;
mod limits;
mod money;
mod objects;
mod open;
mod sql;
mod store;

pub use answers::{AnswerClaim, ClaimBeat, Claimed, KeptAnswer, MAX_ANSWER_BYTES, MAX_ANSWERS};
pub use audit::{AuditEvent, AuditLine, AuditQuery, MAX_AUDIT_LINES};
pub use bounds::{MAX_ENTRY_TOKENS, MAX_TEXT_BYTES, bounded_text};
pub use clock::now_unix_s;
pub use csv::csv_field;
pub use error::StoreError;
pub use future::StoreFuture;
pub use journal::{Journal, Slot};
pub use key::{ApiKey, CreatedKey, KeyChange, KeyDigest, KeyTable, NewKey, digest_of};
pub use ledger::{DailyTotal, LedgerEntry, MAX_USAGE_ROWS, Outcome, UsageGroup, UsageQuery, UsageRow};
pub use limits::{LimitChange, LimitKind, LimitScope, Limits};
pub use money::{Cost, MAX_PRICE, Prices, parse_millionths};
pub use objects::{
    ENTRY_BYTES, ItemAfter, ItemPlace, ItemQuery, Lease, ListOrder, MAX_OBJECT_BYTES, MAX_OBJECT_ID_BYTES,
    MAX_PAGE_BYTES, MAX_PAGE_ENTRIES, MAX_TENANT_BYTES, MAX_TENANT_OBJECTS, NewItem, ObjectChange, ObjectKey,
    ObjectKind, ObjectQuery, ObjectState, ObjectStore, ObjectUsage, ObjectWrite, PendingObject, Quota,
    StoredItem, StoredObject, Written,
};
pub use open::{file_of, open, open_existing};
pub use store::{MAX_KEYS, MAX_NAME_BYTES, Store};
