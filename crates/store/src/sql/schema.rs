//! The schema as numbered steps, which only go forward. The file's `user_version` is the number of steps done.

use std::path::Path;

use sqlx::sqlite::SqlitePool;
use sqlx::{AssertSqlSafe, Row};

use crate::error::StoreError;

/// `application_id` of the file: "thrg".
const APPLICATION_ID: i64 = 0x7468_7267;

/// The steps. A released step never changes.
const STEPS: &[&str] = &[
    "CREATE TABLE organisations (
        id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, created_unix_s INTEGER NOT NULL
     ) STRICT;
     CREATE TABLE projects (
        id TEXT PRIMARY KEY, organisation_id TEXT NOT NULL REFERENCES organisations (id), name TEXT NOT NULL,
        created_unix_s INTEGER NOT NULL, UNIQUE (organisation_id, name)
     ) STRICT;
     CREATE TABLE api_keys (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, project_id TEXT NOT NULL REFERENCES projects (id),
        name TEXT NOT NULL, prefix TEXT NOT NULL, digest BLOB NOT NULL UNIQUE, created_unix_s INTEGER NOT NULL,
        expires_unix_s INTEGER, revoked_unix_s INTEGER, models TEXT, requests_per_minute INTEGER,
        tokens_per_minute INTEGER, concurrent_requests INTEGER
     ) STRICT;
     CREATE INDEX api_keys_by_prefix ON api_keys (prefix);
     CREATE TABLE revision (value INTEGER NOT NULL) STRICT;
     INSERT INTO revision (value) VALUES (1);",
];

/// Does the steps that the file lacks, all or none of them. Two processes may start at the same time.
///
/// # Errors
/// When the file is another program's or has more steps than are known.
pub async fn bring_up_to_date(pool: &SqlitePool, path: &Path) -> Result<(), StoreError> {
    let known = STEPS.len() as i64;
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
    let found: i64 = sqlx::query("PRAGMA user_version").fetch_one(&mut *transaction).await?.try_get(0)?;
    let owner: i64 = sqlx::query("PRAGMA application_id").fetch_one(&mut *transaction).await?.try_get(0)?;
    let tables: i64 =
        sqlx::query("SELECT COUNT(*) FROM sqlite_schema").fetch_one(&mut *transaction).await?.try_get(0)?;
    if owner != APPLICATION_ID && (tables > 0 || owner != 0 || found != 0) {
        return Err(StoreError::Foreign { path: path.to_owned() });
    }
    if found > known {
        return Err(StoreError::NewerSchema { path: path.to_owned(), found, known });
    }
    let n_done = usize::try_from(found).map_err(|_| StoreError::Foreign { path: path.to_owned() })?;
    if n_done == STEPS.len() {
        return Ok(());
    }
    for step in &STEPS[n_done..] {
        sqlx::raw_sql(*step).execute(&mut *transaction).await?;
    }
    let stamp = format!("PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {known};");
    sqlx::raw_sql(AssertSqlSafe(stamp)).execute(&mut *transaction).await?;
    Ok(transaction.commit().await?)
}
