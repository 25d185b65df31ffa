//! The store in one SQLite file with a write-ahead log. Each connection has a thread of its own (sqlx's), so that no caller
//! waits for the disk on its thread.

mod keys;
mod schema;

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::Row;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};

use crate::error::StoreError;
use crate::key::{ApiKey, CreatedKey, KeyChange, KeyTable, NewKey};
use crate::store::{Store, StoreFuture};

/// One connection may read while another one writes.
const N_CONNECTIONS: u32 = 2;
/// How long a statement waits for another process's, and a caller for a connection.
const WAIT_LIMIT: Duration = Duration::from_secs(5);

/// A SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    pool: SqlitePool,
}

impl SqliteStore {
    /// Opens the file, or makes it, and brings its schema to the newest version.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn open(path: &Path) -> Result<Self, StoreError> {
        make_private(path).map_err(|source| StoreError::Create { path: path.to_owned(), source })?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(false)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(WAIT_LIMIT);
        let pool = SqlitePoolOptions::new()
            .max_connections(N_CONNECTIONS)
            .acquire_timeout(WAIT_LIMIT)
            .connect_with(options)
            .await?;
        schema::bring_up_to_date(&pool, path).await?;
        Ok(Self { pool })
    }

    async fn find_damage(&self) -> Result<(), StoreError> {
        let rows = sqlx::query("PRAGMA integrity_check(10)").fetch_all(&self.pool).await?;
        let found: Vec<String> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        if found != ["ok"] {
            return Err(StoreError::Damaged(found.join("; ")));
        }
        let orphans = sqlx::query("PRAGMA foreign_key_check").fetch_all(&self.pool).await?;
        if orphans.is_empty() {
            return Ok(());
        }
        Err(StoreError::Damaged(format!("{} rows refer to absent ones", orphans.len())))
    }

    async fn copy_to(&self, path: &Path) -> Result<(), StoreError> {
        if path.exists() {
            return Err(StoreError::BackupExists { path: path.to_owned() });
        }
        let target = path
            .to_str()
            .map(str::to_owned)
            .ok_or(StoreError::Invalid { field: "the path of the backup", expected: "UTF-8" })?;
        // SQLite writes into an empty file as into none, and keeps its mode.
        make_private(path).map_err(|source| StoreError::Create { path: path.to_owned(), source })?;
        sqlx::query("VACUUM INTO ?").bind(target).execute(&self.pool).await?;
        let file = PathBuf::from(path);
        Self::open(&file).await?.closed().await;
        Ok(())
    }

    async fn closed(&self) {
        self.pool.close().await;
    }
}

/// Makes an empty file that only its owner can read, unless there is one. SQLite gives the files beside it the same mode.
fn make_private(path: &Path) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        other => other.map(drop),
    }
}

impl Store for SqliteStore {
    fn revision(&self) -> StoreFuture<'_, i64> {
        keys::revision(&self.pool).boxed()
    }

    fn keys(&self) -> StoreFuture<'_, KeyTable> {
        keys::all(&self.pool).boxed()
    }

    fn create_key(&self, key: NewKey) -> StoreFuture<'_, CreatedKey> {
        keys::create(&self.pool, key).boxed()
    }

    fn revoke_key<'a>(&'a self, key: &'a str) -> StoreFuture<'a, ApiKey> {
        keys::revoke(&self.pool, key).boxed()
    }

    fn change_key<'a>(&'a self, key: &'a str, change: KeyChange) -> StoreFuture<'a, ApiKey> {
        keys::change(&self.pool, key, change).boxed()
    }

    fn check(&self) -> StoreFuture<'_, ()> {
        self.find_damage().boxed()
    }

    fn backup<'a>(&'a self, path: &'a Path) -> StoreFuture<'a, ()> {
        self.copy_to(path).boxed()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.closed().boxed()
    }
}
