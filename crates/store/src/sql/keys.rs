//! Keys, projects and organisations in SQL. Each change is one transaction, which raises the revision
//! first; other writers wait for it.

use std::collections::HashMap;

use sqlx::any::AnyRow;
use sqlx::{AnyConnection, AnyPool, Row};

use super::SqlStore;
use super::limits::{self, each_user_of};
use super::transaction::Transaction;
use crate::bounds::bounded_text;
use crate::clock::now_unix_s;
use crate::error::StoreError;
use crate::key::{
    ApiKey, CreatedKey, KeyChange, KeyTable, NewKey, digest_of, prefix_of, random_id, random_secret,
};
use crate::limits::{LimitKind, Limits};
use crate::store::{MAX_KEYS, MAX_NAME_BYTES};

/// Maximum number of models that a key is restricted to.
const MAX_MODELS: usize = 256;

/// The columns of a key, joined from their tables.
macro_rules! select_keys {
    ($rest:literal) => {
        concat!(
            "SELECT k.id, k.prefix, k.name, o.name, p.name, p.id, k.digest, k.created_unix_s, k.expires_unix_s,
             k.revoked_unix_s, k.models, o.id
             FROM api_keys k JOIN projects p ON p.id = k.project_id JOIN organisations o ON o.id = p.organisation_id ",
            $rest
        )
    };
}

const CHANGED_KEYS: &str = select_keys!("WHERE k.revision > $1 ORDER BY k.number");
const NAMED_KEYS: &str = select_keys!("WHERE k.id = $1 OR k.prefix = $1 LIMIT 2");

pub async fn revision(pool: &AnyPool) -> Result<i64, StoreError> {
    Ok(sqlx::query("SELECT value FROM revision").fetch_one(pool).await?.try_get(0)?)
}

/// Reads the keys that have changed since a revision, with all their limits. Reads the current revision
/// first: keys that change meanwhile are read again next time.
pub async fn changed(pool: &AnyPool, since: i64) -> Result<KeyTable, StoreError> {
    let mut transaction = Transaction::begin(pool, "BEGIN").await?;
    let row = sqlx::query("SELECT value FROM revision").fetch_one(&mut *transaction).await?;
    let rows = sqlx::query(CHANGED_KEYS).bind(since).fetch_all(&mut *transaction).await?;
    let limits = match rows.is_empty() {
        true => HashMap::new(),
        false => limits::of_changed(&mut transaction, since).await?,
    };
    transaction.commit().await?;
    let keys = rows.iter().map(|row| key_of(row, &limits)).collect::<Result<_, _>>()?;
    Ok(KeyTable { revision: row.try_get(0)?, keys })
}

pub async fn create(store: &SqlStore, new: NewKey) -> Result<CreatedKey, StoreError> {
    check_name("the organisation's name", &new.organisation)?;
    check_name("the project's name", &new.project)?;
    if !new.name.is_empty() {
        check_name("the key's name", &new.name)?;
    }
    let (secret, id) = (random_secret()?, random_id("key")?);
    let mut transaction = store.transaction().await?;
    let revision = raise_revision(&mut transaction).await?;
    let count = sqlx::query("SELECT COUNT(*) FROM api_keys").fetch_one(&mut *transaction).await?;
    if count.try_get::<i64, _>(0)? >= MAX_KEYS as i64 {
        return Err(StoreError::TooManyKeys(MAX_KEYS));
    }
    let project_id = make_project(&mut transaction, &new.organisation, &new.project).await?;
    sqlx::query(
        "INSERT INTO api_keys (id, project_id, name, prefix, digest, created_unix_s, expires_unix_s, models, revision)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    )
    .bind(&id)
    .bind(project_id)
    .bind(new.name)
    .bind(prefix_of(&secret))
    .bind(digest_of(secret.as_bytes()).to_vec())
    .bind(as_i64(now_unix_s())?)
    .bind(new.expires_unix_s.map(as_i64).transpose()?)
    .bind(new.models.as_deref().map(models_text).transpose()?)
    .bind(revision)
    .execute(&mut *transaction)
    .await?;
    let of_new = LimitKind::ALL.map(|kind| (kind, new.limits.get(kind)));
    limits::change_limits(&mut transaction, &id, &of_new).await?;
    let key = find(&mut transaction, &id).await?;
    transaction.commit().await?;
    Ok(CreatedKey::new(key, secret))
}

pub async fn revoke(store: &SqlStore, name: &str) -> Result<ApiKey, StoreError> {
    let mut transaction = store.transaction().await?;
    let revision = raise_revision(&mut transaction).await?;
    let mut key = find(&mut transaction, name).await?;
    if key.is_revoked() {
        transaction.rollback().await?;
    } else {
        key.revoked_unix_s = Some(now_unix_s());
        write(&mut transaction, &key, revision).await?;
        transaction.commit().await?;
    }
    Ok(key)
}

pub async fn change(store: &SqlStore, name: &str, change: KeyChange) -> Result<ApiKey, StoreError> {
    let mut transaction = store.transaction().await?;
    let revision = raise_revision(&mut transaction).await?;
    let mut key = find(&mut transaction, name).await?;
    limits::change_limits(&mut transaction, &key.id, &change.limits).await?;
    change.apply(&mut key);
    write(&mut transaction, &key, revision).await?;
    transaction.commit().await?;
    Ok(key)
}

/// Raises the revision, which notifies servers of the change and locks out other writers until it is
/// committed. Returns the new revision.
pub async fn raise_revision(connection: &mut AnyConnection) -> Result<i64, StoreError> {
    let raised = sqlx::query("UPDATE revision SET value = value + 1 RETURNING value");
    Ok(raised.fetch_one(connection).await?.try_get(0)?)
}

/// Checks that the database can be written, without a visible change.
pub async fn probe(store: &SqlStore) -> Result<(), StoreError> {
    let mut transaction = store.transaction().await?;
    sqlx::query("UPDATE revision SET value = value").execute(&mut *transaction).await?;
    transaction.commit().await
}

/// Writes the changeable columns of a key.
async fn write(connection: &mut AnyConnection, key: &ApiKey, revision: i64) -> Result<(), StoreError> {
    sqlx::query("UPDATE api_keys SET expires_unix_s = $1, revoked_unix_s = $2, models = $3, revision = $4 WHERE id = $5")
        .bind(key.expires_unix_s.map(as_i64).transpose()?)
        .bind(key.revoked_unix_s.map(as_i64).transpose()?)
        .bind(key.models.as_deref().map(models_text).transpose()?)
        .bind(revision)
        .bind(&key.id)
        .execute(connection)
        .await?;
    Ok(())
}

async fn find(connection: &mut AnyConnection, name: &str) -> Result<ApiKey, StoreError> {
    // PostgreSQL refuses some texts that cannot be names of keys.
    let sought = bounded_text(name, MAX_NAME_BYTES);
    let rows = sqlx::query(NAMED_KEYS).bind(sought.as_ref()).fetch_all(&mut *connection).await?;
    match rows.as_slice() {
        [only] => {
            let [id, project, organisation] = [0, 5, 11].map(|column| only.try_get::<String, _>(column));
            let scopes = scopes_of(&id?, &project?, organisation?);
            key_of(only, &limits::of_scopes(connection, &scopes).await?)
        }
        [] => Err(StoreError::UnknownKey(name.to_owned())),
        _ => Err(StoreError::AmbiguousKey(name.to_owned())),
    }
}

/// The scopes whose limits apply to a key.
fn scopes_of(id: &str, project_id: &str, organisation_id: String) -> [String; 4] {
    [id.to_owned(), project_id.to_owned(), organisation_id, each_user_of(project_id)]
}

/// The id of an organisation.
pub async fn organisation_id(connection: &mut AnyConnection, name: &str) -> Result<String, StoreError> {
    let found = sqlx::query("SELECT id FROM organisations WHERE name = $1");
    let found = found.bind(bounded_text(name, MAX_NAME_BYTES).into_owned());
    let row = found.fetch_optional(connection).await?;
    Ok(row.ok_or_else(|| StoreError::UnknownScope(name.to_owned()))?.try_get(0)?)
}

/// The id of a project.
pub async fn project_id(
    connection: &mut AnyConnection,
    organisation: &str,
    project: &str,
) -> Result<String, StoreError> {
    let found = sqlx::query(
        "SELECT p.id FROM projects p JOIN organisations o ON o.id = p.organisation_id WHERE o.name = $1 AND p.name = $2",
    );
    let names = [organisation, project].map(|name| bounded_text(name, MAX_NAME_BYTES).into_owned());
    let row = names.into_iter().fold(found, |found, name| found.bind(name));
    let row = row.fetch_optional(connection).await?;
    Ok(row.ok_or_else(|| StoreError::UnknownScope(format!("{organisation}/{project}")))?.try_get(0)?)
}

/// The id of the project with these names, which is created if it is new.
async fn make_project(
    connection: &mut AnyConnection,
    organisation: &str,
    project: &str,
) -> Result<String, StoreError> {
    let now = as_i64(now_unix_s())?;
    sqlx::query(
        "INSERT INTO organisations (id, name, created_unix_s) VALUES ($1, $2, $3) ON CONFLICT (name) DO NOTHING",
    )
    .bind(random_id("org")?)
    .bind(organisation)
    .bind(now)
    .execute(&mut *connection)
    .await?;
    sqlx::query(
        "INSERT INTO projects (id, organisation_id, name, created_unix_s)
         SELECT $1, id, $2, $3 FROM organisations WHERE name = $4 ON CONFLICT (organisation_id, name) DO NOTHING",
    )
    .bind(random_id("proj")?)
    .bind(project)
    .bind(now)
    .bind(organisation)
    .execute(&mut *connection)
    .await?;
    project_id(connection, organisation, project).await
}

fn key_of(row: &AnyRow, limits: &HashMap<String, Limits>) -> Result<ApiKey, StoreError> {
    let unsigned = |column: usize| -> Result<Option<u64>, StoreError> {
        let value: Option<i64> = row.try_get(column)?;
        value.map(|value| u64::try_from(value).map_err(|_| damaged("a negative number"))).transpose()
    };
    let limits_of = |scope: &str| limits.get(scope).copied().unwrap_or_default();
    let models: Option<String> = row.try_get(10)?;
    let models = models.map(|text| serde_json::from_str(&text)).transpose();
    let (id, project_id, organisation_id): (String, String, String) =
        (row.try_get(0)?, row.try_get(5)?, row.try_get(11)?);
    Ok(ApiKey {
        limits: limits_of(&id),
        project_limits: limits_of(&project_id),
        organisation_limits: limits_of(&organisation_id),
        user_limits: limits_of(&each_user_of(&project_id)),
        id,
        prefix: row.try_get(1)?,
        name: row.try_get(2)?,
        organisation: row.try_get(3)?,
        organisation_id,
        project: row.try_get(4)?,
        project_id,
        digest: row
            .try_get::<Vec<u8>, _>(6)?
            .try_into()
            .map_err(|_| damaged("a digest of another length"))?,
        created_unix_s: unsigned(7)?.unwrap_or_default(),
        expires_unix_s: unsigned(8)?,
        revoked_unix_s: unsigned(9)?,
        models: models.map_err(|_| damaged("a list of models"))?,
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
