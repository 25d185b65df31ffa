//! Keys, projects and organisations in SQL. Each change is one transaction, which raises the revision.

use std::time::{SystemTime, UNIX_EPOCH};

use sqlx::sqlite::{SqlitePool, SqliteRow};
use sqlx::{Row, SqliteConnection};

use crate::error::StoreError;
use crate::key::{
    ApiKey, CreatedKey, KeyChange, KeyLimits, KeyTable, NewKey, digest_of, prefix_of, random_id,
    random_secret,
};
use crate::store::{MAX_KEYS, MAX_NAME_BYTES};

/// Most models that one key is restricted to.
const MAX_MODELS: usize = 256;

const ALL_KEYS: &str =
    "SELECT k.id, k.prefix, k.name, o.name, p.name, p.id, k.digest, k.created_unix_s, k.expires_unix_s,
    k.revoked_unix_s, k.models, k.requests_per_minute, k.tokens_per_minute, k.concurrent_requests
    FROM api_keys k JOIN projects p ON p.id = k.project_id JOIN organisations o ON o.id = p.organisation_id
    ORDER BY k.number";
const NAMED_KEYS: &str =
    "SELECT k.id, k.prefix, k.name, o.name, p.name, p.id, k.digest, k.created_unix_s, k.expires_unix_s,
    k.revoked_unix_s, k.models, k.requests_per_minute, k.tokens_per_minute, k.concurrent_requests
    FROM api_keys k JOIN projects p ON p.id = k.project_id JOIN organisations o ON o.id = p.organisation_id
    WHERE k.id = ?1 OR k.prefix = ?1 LIMIT 2";

pub async fn revision(pool: &SqlitePool) -> Result<i64, StoreError> {
    Ok(sqlx::query("SELECT value FROM revision").fetch_one(pool).await?.try_get(0)?)
}

pub async fn all(pool: &SqlitePool) -> Result<KeyTable, StoreError> {
    // One transaction reads one state of the database.
    let mut transaction = pool.begin().await?;
    let row = sqlx::query("SELECT value FROM revision").fetch_one(&mut *transaction).await?;
    let rows = sqlx::query(ALL_KEYS).fetch_all(&mut *transaction).await?;
    let keys = rows.iter().map(key_of).collect::<Result<_, _>>()?;
    Ok(KeyTable { revision: row.try_get(0)?, keys })
}

pub async fn create(pool: &SqlitePool, new: NewKey) -> Result<CreatedKey, StoreError> {
    let NewKey { organisation, project, name, expires_unix_s, models, limits } = new;
    check_name("the organisation's name", &organisation)?;
    check_name("the project's name", &project)?;
    if !name.is_empty() {
        check_name("the key's name", &name)?;
    }
    let secret = random_secret()?;
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
    let count = sqlx::query("SELECT COUNT(*) FROM api_keys").fetch_one(&mut *transaction).await?;
    if count.try_get::<i64, _>(0)? >= MAX_KEYS as i64 {
        return Err(StoreError::TooManyKeys(MAX_KEYS));
    }
    let project_id = project_of(&mut transaction, &organisation, &project).await?;
    let key = ApiKey {
        id: random_id("key")?,
        prefix: prefix_of(&secret),
        name,
        organisation,
        project,
        project_id,
        digest: digest_of(secret.as_bytes()),
        created_unix_s: now_unix_s(),
        expires_unix_s,
        revoked_unix_s: None,
        models,
        limits,
    };
    sqlx::query(
        "INSERT INTO api_keys (id, project_id, name, prefix, digest, created_unix_s) VALUES (?, ?, ?, ?, ?, ?)",
    )
    .bind(&key.id)
    .bind(&key.project_id)
    .bind(&key.name)
    .bind(&key.prefix)
    .bind(key.digest.to_vec())
    .bind(as_i64(key.created_unix_s)?)
    .execute(&mut *transaction)
    .await?;
    write(&mut transaction, &key).await?;
    transaction.commit().await?;
    Ok(CreatedKey::new(key, secret))
}

pub async fn revoke(pool: &SqlitePool, name: &str) -> Result<ApiKey, StoreError> {
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
    let mut key = find(&mut transaction, name).await?;
    if !key.is_revoked() {
        key.revoked_unix_s = Some(now_unix_s());
        write(&mut transaction, &key).await?;
        transaction.commit().await?;
    }
    Ok(key)
}

pub async fn change(pool: &SqlitePool, name: &str, change: KeyChange) -> Result<ApiKey, StoreError> {
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
    let mut key = find(&mut transaction, name).await?;
    change.apply(&mut key);
    write(&mut transaction, &key).await?;
    transaction.commit().await?;
    Ok(key)
}

/// Writes the columns of a key that can change, and increments the revision.
async fn write(connection: &mut SqliteConnection, key: &ApiKey) -> Result<(), StoreError> {
    let expires = key.expires_unix_s.map(as_i64).transpose()?;
    let revoked = key.revoked_unix_s.map(as_i64).transpose()?;
    let models = key.models.as_deref().map(models_text).transpose()?;
    sqlx::query(
        "UPDATE api_keys SET expires_unix_s = ?, revoked_unix_s = ?, models = ?, requests_per_minute = ?,
         tokens_per_minute = ?, concurrent_requests = ? WHERE id = ?",
    )
    .bind(expires)
    .bind(revoked)
    .bind(models)
    .bind(key.limits.requests_per_minute)
    .bind(key.limits.tokens_per_minute)
    .bind(key.limits.concurrent_requests)
    .bind(&key.id)
    .execute(&mut *connection)
    .await?;
    sqlx::query("UPDATE revision SET value = value + 1").execute(connection).await?;
    Ok(())
}

async fn find(connection: &mut SqliteConnection, name: &str) -> Result<ApiKey, StoreError> {
    let rows = sqlx::query(NAMED_KEYS).bind(name).fetch_all(connection).await?;
    match rows.as_slice() {
        [only] => key_of(only),
        [] => Err(StoreError::UnknownKey(name.to_owned())),
        _ => Err(StoreError::AmbiguousKey(name.to_owned())),
    }
}

/// The id of the project of these names, which is made when it is new.
async fn project_of(
    connection: &mut SqliteConnection,
    organisation: &str,
    project: &str,
) -> Result<String, StoreError> {
    let now = as_i64(now_unix_s())?;
    sqlx::query(
        "INSERT INTO organisations (id, name, created_unix_s) VALUES (?, ?, ?) ON CONFLICT (name) DO NOTHING",
    )
    .bind(random_id("org")?)
    .bind(organisation)
    .bind(now)
    .execute(&mut *connection)
    .await?;
    sqlx::query(
        "INSERT INTO projects (id, organisation_id, name, created_unix_s)
         SELECT ?, id, ?, ? FROM organisations WHERE name = ? ON CONFLICT (organisation_id, name) DO NOTHING",
    )
    .bind(random_id("proj")?)
    .bind(project)
    .bind(now)
    .bind(organisation)
    .execute(&mut *connection)
    .await?;
    let found = sqlx::query(
        "SELECT p.id FROM projects p JOIN organisations o ON o.id = p.organisation_id WHERE o.name = ? AND p.name = ?",
    )
    .bind(organisation)
    .bind(project)
    .fetch_one(connection)
    .await?;
    Ok(found.try_get(0)?)
}

fn key_of(row: &SqliteRow) -> Result<ApiKey, StoreError> {
    let unsigned = |column: usize| -> Result<Option<u64>, StoreError> {
        let value: Option<i64> = row.try_get(column)?;
        value.map(|value| u64::try_from(value).map_err(|_| damaged("a negative number"))).transpose()
    };
    let limit = |column: usize| -> Result<Option<u32>, StoreError> {
        unsigned(column)?.map(|value| u32::try_from(value).map_err(|_| damaged("a large limit"))).transpose()
    };
    let models: Option<String> = row.try_get(10)?;
    let models = models.map(|text| serde_json::from_str(&text)).transpose();
    Ok(ApiKey {
        id: row.try_get(0)?,
        prefix: row.try_get(1)?,
        name: row.try_get(2)?,
        organisation: row.try_get(3)?,
        project: row.try_get(4)?,
        project_id: row.try_get(5)?,
        digest: row
            .try_get::<Vec<u8>, _>(6)?
            .try_into()
            .map_err(|_| damaged("a digest of another length"))?,
        created_unix_s: unsigned(7)?.unwrap_or_default(),
        expires_unix_s: unsigned(8)?,
        revoked_unix_s: unsigned(9)?,
        models: models.map_err(|_| damaged("a list of models"))?,
        limits: KeyLimits {
            requests_per_minute: limit(11)?,
            tokens_per_minute: limit(12)?,
            concurrent_requests: limit(13)?,
        },
    })
}

fn damaged(what: &str) -> StoreError {
    StoreError::Damaged(format!("{what} in the table of keys"))
}

fn models_text(models: &[String]) -> Result<String, StoreError> {
    let expected = "at most 256 names";
    if models.len() > MAX_MODELS {
        return Err(StoreError::Invalid { field: "the list of models", expected });
    }
    models.iter().try_for_each(|model| check_name("a model's name", model))?;
    serde_json::to_string(models).map_err(|_| StoreError::Invalid { field: "the list of models", expected })
}

fn check_name(field: &'static str, name: &str) -> Result<(), StoreError> {
    if (1..=MAX_NAME_BYTES).contains(&name.len()) && !name.chars().any(char::is_control) {
        return Ok(());
    }
    Err(StoreError::Invalid { field, expected: "1 to 256 bytes without control characters" })
}

fn as_i64(unix_s: u64) -> Result<i64, StoreError> {
    i64::try_from(unix_s).map_err(|_| StoreError::Invalid { field: "a time", expected: "below 2^63 seconds" })
}

fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
