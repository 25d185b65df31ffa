//! Opens, checks and copies SQLite files with a write-ahead log. Each connection has a thread of its own
//! (sqlx's), so that callers do not block on the disk. These threads have the priority of threads for
//! blocking work: rows are written in batches, which must not slow down requests.

use std::fmt::Write;
use std::path::Path;

use sqlx::any::{AnyConnectOptions, AnyPoolOptions};
use sqlx::{AnyPool, Executor, Row};
use tokio::runtime::Handle;

use super::{Dialect, WAIT_LIMIT, schema};
use crate::error::StoreError;

/// Two connections: one may read while the other writes.
const N_CONNECTIONS: u32 = 2;

/// Opens the file, or creates an empty one.
pub async fn open(path: &Path) -> Result<AnyPool, StoreError> {
    make_private(path).map_err(|source| StoreError::Create { path: path.to_owned(), source })?;
    sqlx::any::install_default_drivers();
    let options: AnyConnectOptions = url_of(path)?.parse()?;
    let settings = format!(
        "PRAGMA busy_timeout = {}; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON",
        WAIT_LIMIT.as_millis()
    );
    let pool = AnyPoolOptions::new()
        .max_connections(N_CONNECTIONS)
        .idle_timeout(None)
        .max_lifetime(None)
        .acquire_timeout(WAIT_LIMIT)
        .after_connect(move |connection, _| {
            let settings = sqlx::AssertSqlSafe(settings.clone());
            Box::pin(async move { connection.execute(sqlx::raw_sql(settings)).await.map(drop) })
        })
        .connect_with(options);
    let open_all = async {
        let pool = pool.await?;
        // Connections open one after the other: SQLite does not wait while another connection enables the
        // log.
        let mut connections = Vec::new();
        for _ in 0..N_CONNECTIONS {
            connections.push(pool.acquire().await?);
        }
        drop(connections);
        Ok::<_, sqlx::Error>(pool)
    };
    // A connection's thread inherits the priority of the thread that opens it.
    let runtime = Handle::current();
    let opened = tokio::task::spawn_blocking(move || runtime.block_on(open_all)).await;
    Ok(opened.map_err(|_| sqlx::Error::WorkerCrashed)??)
}

/// Checks the integrity of the file.
pub async fn check(pool: &AnyPool) -> Result<(), StoreError> {
    let rows = sqlx::query("PRAGMA integrity_check(10)").fetch_all(pool).await?;
    let found: Vec<String> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    if found != ["ok"] {
        return Err(StoreError::Damaged(found.join("; ")));
    }
    let orphans = sqlx::query("PRAGMA foreign_key_check").fetch_all(pool).await?;
    if orphans.is_empty() {
        return Ok(());
    }
    Err(StoreError::Damaged(format!("{} rows refer to absent ones", orphans.len())))
}

/// Writes a copy to a new file.
pub async fn copy_to(pool: &AnyPool, path: &Path) -> Result<(), StoreError> {
    if path.exists() {
        return Err(StoreError::BackupExists { path: path.to_owned() });
    }
    let target = path
        .to_str()
        .map(str::to_owned)
        .ok_or(StoreError::Invalid { field: "the path of the backup", expected: "UTF-8" })?;
    // SQLite accepts an empty file as the target, and keeps its mode.
    make_private(path).map_err(|source| StoreError::Create { path: path.to_owned(), source })?;
    sqlx::query("VACUUM INTO $1").bind(target).execute(pool).await?;
    let copy = open(path).await?;
    schema::bring_up_to_date(&copy, Dialect::Sqlite, &path.display().to_string()).await?;
    copy.close().await;
    Ok(())
}

/// The file as a URL of sqlx; any character in the path is escaped.
fn url_of(path: &Path) -> Result<String, StoreError> {
    let path =
        std::path::absolute(path).map_err(|source| StoreError::Create { path: path.to_owned(), source })?;
    let path =
        path.to_str().ok_or(StoreError::Invalid { field: "the path of the database", expected: "UTF-8" })?;
    let mut url = "sqlite://".to_owned();
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte) {
            url.push(char::from(byte));
        } else {
            let _ = write!(url, "%{byte:02X}");
        }
    }
    Ok(url)
}

/// Creates an empty file that only its owner can read, if there is none. SQLite gives the same mode to the
/// files beside it.
fn make_private(path: &Path) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        other => other.map(drop),
    }
}
