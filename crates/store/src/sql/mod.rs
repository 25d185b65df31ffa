//! The store in SQL. SQLite and PostgreSQL run the same statements, except for [`Dialect`], the schema and
//! opening.

mod answers;
mod audit;
mod checks;
mod entry;
mod keys;
mod ledger;
mod limits;
mod objects;
mod postgres;
mod schema;
mod scopes;
mod sqlite;
mod totals;
mod transaction;
mod usage;

use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::AnyPool;
use transaction::Transaction;

use crate::answers::{AnswerClaim, ClaimBeat, Claimed, KeptAnswer};
use crate::audit::{AuditLine, AuditQuery};
use crate::bounds::{MAX_TEXT_BYTES, bounded_text};
use crate::error::StoreError;
use crate::future::StoreFuture;
use crate::key::{ApiKey, CreatedKey, KeyChange, KeyTable, NewKey};
use crate::ledger::{DailyTotal, LedgerEntry, UsageQuery, UsageRow};
use crate::limits::{LimitChange, LimitScope, Limits};
use crate::store::Store;

/// Timeout of a statement that waits for another process, of a caller that waits for a connection, and of
/// an answer.
const WAIT_LIMIT: Duration = Duration::from_secs(5);

/// Dialect of SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    Sqlite,
    Postgres,
}

impl Dialect {
    /// The statement that starts a writing transaction. SQLite would otherwise fail a transaction that has
    /// read before another one wrote.
    fn begin_writing(self) -> &'static str {
        match self {
            Self::Sqlite => "BEGIN IMMEDIATE",
            Self::Postgres => "BEGIN",
        }
    }

    /// The placeholder of a parameter, numbered from 1, in a statement with parameters in order. For SQLite
    /// it has no name: each binding would search for the name among all others.
    fn place(self, number: usize) -> String {
        match self {
            Self::Sqlite => "?".to_owned(),
            Self::Postgres => format!("${number}"),
        }
    }

    /// The placeholders of rows and columns of an insert.
    fn places(self, n_rows: usize, n_columns: usize) -> String {
        let row = |at: usize| {
            let places = (1..=n_columns).map(|column| self.place(at * n_columns + column));
            format!("({})", places.collect::<Vec<_>>().join(", "))
        };
        (0..n_rows).map(row).collect::<Vec<_>>().join(", ")
    }
}

/// A store in a database.
#[derive(Debug)]
pub(crate) struct SqlStore {
    pool: AnyPool,
    dialect: Dialect,
    /// Reason why the last write failed.
    write_fault: Mutex<Option<String>>,
}

impl SqlStore {
    /// Opens or creates a SQLite file, and updates its schema.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn open_file(path: &Path) -> Result<Self, StoreError> {
        let pool = sqlite::open(path).await?;
        schema::bring_up_to_date(&pool, Dialect::Sqlite, &path.display().to_string()).await?;
        Ok(Self { pool, dialect: Dialect::Sqlite, write_fault: Mutex::default() })
    }

    /// Connects to a PostgreSQL server and updates the schema.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        let opened = async {
            let pool = postgres::connect(url).await?;
            schema::bring_up_to_date(&pool, Dialect::Postgres, "the PostgreSQL database").await?;
            Ok(Self { pool, dialect: Dialect::Postgres, write_fault: Mutex::default() })
        };
        answered(opened).await
    }

    async fn transaction(&self) -> Result<Transaction, StoreError> {
        Transaction::begin(&self.pool, self.dialect.begin_writing()).await
    }

    /// Runs a write with the timeout of [`answered`], and records whether the database can be written.
    async fn written<T>(&self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let done = answered(work).await;
        let fault = match &done {
            Ok(_) => None,
            Err(error @ (StoreError::Database(_) | StoreError::NoAnswer)) => Some(error.to_string()),
            // The request itself is invalid, which says nothing about the database.
            Err(_) => return done,
        };
        *self.write_fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
        done
    }
}

/// Adds a timeout, for a database that is stopped or frozen.
async fn answered<T>(work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    tokio::time::timeout(WAIT_LIMIT, work).await.unwrap_or(Err(StoreError::NoAnswer))
}

/// The text in a form that all databases accept.
fn text(text: &str) -> String {
    bounded_text(text, usize::MAX).into_owned()
}

/// A text of the ledger or the audit, truncated if it is too long.
fn short_text(text: &str) -> String {
    bounded_text(text, MAX_TEXT_BYTES).into_owned()
}

impl Store for SqlStore {
    fn revision(&self) -> StoreFuture<'_, i64> {
        answered(keys::revision(&self.pool)).boxed()
    }

    fn keys(&self) -> StoreFuture<'_, KeyTable> {
        answered(keys::changed(&self.pool, -1)).boxed()
    }

    fn changed_keys(&self, since: i64) -> StoreFuture<'_, KeyTable> {
        answered(keys::changed(&self.pool, since)).boxed()
    }

    fn create_key(&self, key: NewKey) -> StoreFuture<'_, CreatedKey> {
        self.written(keys::create(self, key)).boxed()
    }

    fn revoke_key<'a>(&'a self, key: &'a str) -> StoreFuture<'a, ApiKey> {
        self.written(keys::revoke(self, key)).boxed()
    }

    fn change_key<'a>(&'a self, key: &'a str, change: KeyChange) -> StoreFuture<'a, ApiKey> {
        self.written(keys::change(self, key, change)).boxed()
    }

    fn limit<'a>(&'a self, scope: &'a LimitScope, change: LimitChange) -> StoreFuture<'a, Limits> {
        self.written(scopes::change_scope(self, scope, change)).boxed()
    }

    fn append<'a>(&'a self, entries: &'a [LedgerEntry]) -> StoreFuture<'a, ()> {
        self.written(ledger::append(self, entries)).boxed()
    }

    fn usage<'a>(&'a self, query: &'a UsageQuery) -> StoreFuture<'a, Vec<UsageRow>> {
        answered(usage::usage(&self.pool, query)).boxed()
    }

    fn usage_at_leisure<'a>(&'a self, query: &'a UsageQuery) -> StoreFuture<'a, Vec<UsageRow>> {
        usage::usage(&self.pool, query).boxed()
    }

    fn make_earlier_totals(&self) -> StoreFuture<'_, bool> {
        totals::make_earlier(self).boxed()
    }

    fn repair_totals(&self, unix_s: u64) -> StoreFuture<'_, bool> {
        totals::repair(self, unix_s).boxed()
    }

    fn daily_totals(&self, days: Range<u64>) -> StoreFuture<'_, Vec<DailyTotal>> {
        answered(ledger::daily_totals(&self.pool, (days.start, days.end))).boxed()
    }

    fn append_audit<'a>(&'a self, lines: &'a [AuditLine]) -> StoreFuture<'a, ()> {
        self.written(audit::append(self, lines)).boxed()
    }

    fn audit<'a>(&'a self, query: &'a AuditQuery) -> StoreFuture<'a, Vec<(u64, AuditLine)>> {
        answered(audit::read(&self.pool, query)).boxed()
    }

    fn claim_answer<'a>(
        &'a self,
        claim: &'a AnswerClaim,
        now_unix_s: u64,
        dead: Option<&'a ClaimBeat>,
    ) -> StoreFuture<'a, Claimed> {
        self.written(answers::claim(self, claim, now_unix_s, dead)).boxed()
    }

    fn beat_answer<'a>(&'a self, claim: &'a AnswerClaim) -> StoreFuture<'a, bool> {
        self.written(answers::beat(&self.pool, claim)).boxed()
    }

    fn keep_answer<'a>(&'a self, claim: &'a AnswerClaim, answer: &'a KeptAnswer) -> StoreFuture<'a, bool> {
        self.written(answers::keep(&self.pool, claim, answer)).boxed()
    }

    fn release_answer<'a>(&'a self, claim: &'a AnswerClaim) -> StoreFuture<'a, ()> {
        self.written(answers::release(&self.pool, claim)).boxed()
    }

    fn forget_answers(&self, now_unix_s: u64) -> StoreFuture<'_, u64> {
        self.written(answers::forget(&self.pool, now_unix_s)).boxed()
    }

    fn probe_write(&self) -> StoreFuture<'_, ()> {
        self.written(keys::probe(self)).boxed()
    }

    fn write_fault(&self) -> Option<String> {
        self.write_fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn check(&self) -> StoreFuture<'_, ()> {
        let check = async {
            if self.dialect == Dialect::Sqlite {
                sqlite::check(&self.pool).await?;
            }
            checks::check(&self.pool).await
        };
        check.boxed()
    }

    fn backup<'a>(&'a self, path: &'a Path) -> StoreFuture<'a, ()> {
        match self.dialect {
            Dialect::Sqlite => sqlite::copy_to(&self.pool, path).boxed(),
            Dialect::Postgres => async { Err(StoreError::NoBackup) }.boxed(),
        }
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.pool.close().boxed()
    }
}
