//! The trait that all databases answer. Does not know SQL.

use std::fmt::Debug;
use std::ops::Range;
use std::path::Path;

use futures_util::future::BoxFuture;

use crate::answers::{AnswerClaim, ClaimBeat, Claimed, KeptAnswer};
use crate::audit::{AuditLine, AuditQuery};
use crate::future::StoreFuture;
use crate::key::{ApiKey, CreatedKey, KeyChange, KeyTable, NewKey};
use crate::ledger::{DailyTotal, LedgerEntry, UsageQuery, UsageRow};
use crate::limits::{LimitChange, LimitScope, Limits};
use crate::objects::ObjectStore;

/// Most keys of a database, revoked ones included: a server holds all of them in memory.
pub const MAX_KEYS: usize = 100_000;
/// Longest name of an organisation, a project, a key or a model in bytes.
pub const MAX_NAME_BYTES: usize = 256;

/// A database. Its work runs on other threads than the caller's. Each change is durable when its future is
/// ready, and is seen by all processes that have the database open.
pub trait Store: ObjectStore + Debug + Send + Sync {
    /// Rises with each change of a key or a limit.
    fn revision(&self) -> StoreFuture<'_, i64>;
    /// All keys, with the revision that they have.
    fn keys(&self) -> StoreFuture<'_, KeyTable>;
    /// The keys that have changed, or whose limits of any scope have, after this revision, with the revision
    /// that they have.
    fn changed_keys(&self, since: i64) -> StoreFuture<'_, KeyTable>;
    /// Makes a key, and its organisation and project where they are new.
    fn create_key(&self, key: NewKey) -> StoreFuture<'_, CreatedKey>;
    /// Revokes a key, named by id or prefix. Revoking it again changes nothing.
    fn revoke_key<'a>(&'a self, key: &'a str) -> StoreFuture<'a, ApiKey>;
    /// Changes what a key may use.
    fn change_key<'a>(&'a self, key: &'a str, change: KeyChange) -> StoreFuture<'a, ApiKey>;
    /// Changes how much an organisation, a project or each of its users may use.
    fn limit<'a>(&'a self, scope: &'a LimitScope, change: LimitChange) -> StoreFuture<'a, Limits>;
    /// Appends entries to the ledger, all or none. One whose id is there already changes nothing.
    /// [`StoreError::Refused`] when one of them is what the database cannot take.
    fn append<'a>(&'a self, entries: &'a [LedgerEntry]) -> StoreFuture<'a, ()>;
    /// Sums of the entries of a span of time, ordered by bucket and group.
    fn usage<'a>(&'a self, query: &'a UsageQuery) -> StoreFuture<'a, Vec<UsageRow>>;
    /// The usage of [`Self::usage`], without a bound on the time that it takes in this process.
    fn usage_at_leisure<'a>(&'a self, query: &'a UsageQuery) -> StoreFuture<'a, Vec<UsageRow>>;
    /// Adds up an hour of the ledger that an older version has written, so that questions need not read its
    /// rows. Whether there are more.
    fn make_earlier_totals(&self) -> StoreFuture<'_, bool>;
    /// Adds up the hour of this second again if entries are missing in its sums, as servers of an older
    /// version on the same database leave them. Whether there were.
    fn repair_totals(&self, unix_s: u64) -> StoreFuture<'_, bool>;
    /// Usage of each key on each of these days, counted in days since the epoch.
    fn daily_totals(&self, days: Range<u64>) -> StoreFuture<'_, Vec<DailyTotal>>;
    /// Appends lines to the audit, all or none. One whose id is there already changes nothing.
    fn append_audit<'a>(&'a self, lines: &'a [AuditLine]) -> StoreFuture<'a, ()>;
    /// Lines of the audit with their numbers, which rise in the order of writing.
    fn audit<'a>(&'a self, query: &'a AuditQuery) -> StoreFuture<'a, Vec<(u64, AuditLine)>>;
    /// Claims a request, also if its owner has given no sign of life since `dead`. `now_unix_s` tells which
    /// answers have expired.
    fn claim_answer<'a>(
        &'a self,
        claim: &'a AnswerClaim,
        now_unix_s: u64,
        dead: Option<&'a ClaimBeat>,
    ) -> StoreFuture<'a, Claimed>;
    /// The owner of a claim lives. Whether it is still the owner.
    fn beat_answer<'a>(&'a self, claim: &'a AnswerClaim) -> StoreFuture<'a, bool>;
    /// Keeps the answer to a claimed request. Whether the caller was still the owner; else nothing changes.
    fn keep_answer<'a>(&'a self, claim: &'a AnswerClaim, answer: &'a KeptAnswer) -> StoreFuture<'a, bool>;
    /// Gives a claim up, if the caller is still its owner.
    fn release_answer<'a>(&'a self, claim: &'a AnswerClaim) -> StoreFuture<'a, ()>;
    /// Forgets some of the answers that have expired. How many.
    fn forget_answers(&self, now_unix_s: u64) -> StoreFuture<'_, u64>;
    /// Writes without changing anything, to see whether the database can be written again.
    fn probe_write(&self) -> StoreFuture<'_, ()>;
    /// Reason why the last write failed; `None` if it did not.
    fn write_fault(&self) -> Option<String>;
    /// Checks that the database is whole, and that totals are those of the ledger.
    fn check(&self) -> StoreFuture<'_, ()>;
    /// Writes a copy of the database to a new file while it is in use. Only SQLite can.
    fn backup<'a>(&'a self, path: &'a Path) -> StoreFuture<'a, ()>;
    /// Finishes what runs and closes the database.
    fn close(&self) -> BoxFuture<'_, ()>;
}
