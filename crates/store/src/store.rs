//! The trait of all databases. Does not know SQL.

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

/// Maximum number of keys of a database, including revoked ones: a server holds all of them in memory.
pub const MAX_KEYS: usize = 100_000;
/// Maximum bytes of the name of an organisation, a project, a key or a model.
pub const MAX_NAME_BYTES: usize = 256;

/// A database. Its work runs on other threads than the caller's. Each change is durable when its future is
/// ready, and is visible to all processes that have the database open.
pub trait Store: ObjectStore + Debug + Send + Sync {
    /// Revision of keys and limits, which rises with each change.
    fn revision(&self) -> StoreFuture<'_, i64>;
    /// All keys, with their revision.
    fn keys(&self) -> StoreFuture<'_, KeyTable>;
    /// The keys that have changed after this revision themselves or in the limits of their scopes, with the
    /// current revision.
    fn changed_keys(&self, since: i64) -> StoreFuture<'_, KeyTable>;
    /// Creates a key, and its organisation and project if they are new.
    fn create_key(&self, key: NewKey) -> StoreFuture<'_, CreatedKey>;
    /// Revokes a key, given by id or prefix. Revoking it again has no effect.
    fn revoke_key<'a>(&'a self, key: &'a str) -> StoreFuture<'a, ApiKey>;
    /// Changes a key's restrictions.
    fn change_key<'a>(&'a self, key: &'a str, change: KeyChange) -> StoreFuture<'a, ApiKey>;
    /// Changes the limits of an organisation, a project or each of its users.
    fn limit<'a>(&'a self, scope: &'a LimitScope, change: LimitChange) -> StoreFuture<'a, Limits>;
    /// Appends entries to the ledger, all or none. An entry whose id already exists is ignored.
    /// [`StoreError::Refused`] if the database rejects one of them.
    fn append<'a>(&'a self, entries: &'a [LedgerEntry]) -> StoreFuture<'a, ()>;
    /// Sums of entries in a time range, ordered by bucket and group.
    fn usage<'a>(&'a self, query: &'a UsageQuery) -> StoreFuture<'a, Vec<UsageRow>>;
    /// Usage as by [`Self::usage`], without this process's timeout.
    fn usage_at_leisure<'a>(&'a self, query: &'a UsageQuery) -> StoreFuture<'a, Vec<UsageRow>>;
    /// Computes the totals of one hour of ledger entries by an older version, so that queries need not read
    /// its rows. Returns whether there are earlier hours.
    fn make_earlier_totals(&self) -> StoreFuture<'_, bool>;
    /// Computes the totals of the hour of this second again if they lack entries, as those of an older
    /// version on the same database do. Returns whether they did.
    fn repair_totals(&self, unix_s: u64) -> StoreFuture<'_, bool>;
    /// Usage of each key on each of these days, counted since the epoch.
    fn daily_totals(&self, days: Range<u64>) -> StoreFuture<'_, Vec<DailyTotal>>;
    /// Appends lines to the audit, all or none. A line whose id already exists is ignored.
    fn append_audit<'a>(&'a self, lines: &'a [AuditLine]) -> StoreFuture<'a, ()>;
    /// Lines of the audit with their numbers, which rise in the order of writing.
    fn audit<'a>(&'a self, query: &'a AuditQuery) -> StoreFuture<'a, Vec<(u64, AuditLine)>>;
    /// Claims a request, even one whose owner has not sent a heartbeat since `dead`. Answers that have
    /// expired at `now_unix_s` do not count.
    fn claim_answer<'a>(
        &'a self,
        claim: &'a AnswerClaim,
        now_unix_s: u64,
        dead: Option<&'a ClaimBeat>,
    ) -> StoreFuture<'a, Claimed>;
    /// Sends a heartbeat of a claim's owner. Returns whether it still has the claim.
    fn beat_answer<'a>(&'a self, claim: &'a AnswerClaim) -> StoreFuture<'a, bool>;
    /// Stores the answer to a claimed request, if the caller still has the claim. Returns whether it had.
    fn keep_answer<'a>(&'a self, claim: &'a AnswerClaim, answer: &'a KeptAnswer) -> StoreFuture<'a, bool>;
    /// Releases a claim, if the caller still has it.
    fn release_answer<'a>(&'a self, claim: &'a AnswerClaim) -> StoreFuture<'a, ()>;
    /// Deletes some expired answers. Returns their number.
    fn forget_answers(&self, now_unix_s: u64) -> StoreFuture<'_, u64>;
    /// Writes without a visible change, to check whether the database can be written again.
    fn probe_write(&self) -> StoreFuture<'_, ()>;
    /// Reason why the last write failed; `None` if it succeeded.
    fn write_fault(&self) -> Option<String>;
    /// Checks the integrity of the database, and that its totals equal the ledger's sums.
    fn check(&self) -> StoreFuture<'_, ()>;
    /// Copies the database to a new file while it is in use. Only SQLite supports it.
    fn backup<'a>(&'a self, path: &'a Path) -> StoreFuture<'a, ()>;
    /// Finishes running work and closes the database.
    fn close(&self) -> BoxFuture<'_, ()>;
}
