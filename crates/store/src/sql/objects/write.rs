//! Writes objects and appends their items, all in one transaction.

use sqlx::{AnyConnection, Row};

use super::{Totals, finish, is_id, is_key, is_named, named};
use crate::bounds::as_i64;
use crate::error::StoreError;
use crate::objects::{
    ENTRY_BYTES, ItemPlace, MAX_OBJECT_BYTES, MAX_OBJECT_ID_BYTES, NewItem, ObjectChange, ObjectKey,
    ObjectWrite, Written,
};
use crate::sql::SqlStore;

/// An object's row before a write and after it.
struct State {
    number: i64,
    version: i64,
    n_items: i64,
    n_bytes: i64,
    /// Bytes of the body.
    body_bytes: i64,
    owner: String,
}

pub async fn write(store: &SqlStore, writes: &[ObjectWrite]) -> Result<Vec<Written>, StoreError> {
    let Some(first) = writes.first() else { return Ok(Vec::new()) };
    writes.iter().try_for_each(check)?;
    if writes.iter().any(|write| write.key.tenant != first.key.tenant) {
        return Err(StoreError::Invalid { field: "the writes of a transaction", expected: "of one tenant" });
    }
    let mut transaction = store.transaction().await?;
    let done = write_all(&mut transaction, &first.key.tenant, writes).await;
    finish(transaction, done).await
}

fn check(write: &ObjectWrite) -> Result<(), StoreError> {
    let parent = write.change.as_ref().and_then(|change| change.parent.as_ref());
    let has_ids = is_key(&write.key)
        && parent.is_none_or(|parent| is_id(parent))
        && write.items.iter().all(|item| is_id(&item.id));
    if !has_ids {
        const { assert!(MAX_OBJECT_ID_BYTES == 512) };
        let expected = "1 to 512 bytes without control characters";
        return Err(StoreError::Invalid { field: "an id or a tenant", expected });
    }
    let body = write.change.as_ref().map_or(0, |change| change.body.len());
    if write.items.iter().map(|item| item.body.len()).chain([body]).any(|n| n > MAX_OBJECT_BYTES) {
        const { assert!(MAX_OBJECT_BYTES == 32 << 20) };
        return Err(StoreError::Invalid { field: "an object or an item", expected: "at most 32 MiB" });
    }
    Ok(())
}

async fn write_all(
    connection: &mut AnyConnection,
    tenant: &str,
    writes: &[ObjectWrite],
) -> Result<Vec<Written>, StoreError> {
    let before = Totals::lock(connection, tenant).await?;
    let mut totals = before;
    let mut written = Vec::with_capacity(writes.len());
    for write in writes {
        written.push(write_one(connection, write, &mut totals).await?);
        let objects = (before.n_objects, totals.n_objects, as_i64(write.quota.max_objects));
        let bytes = (before.n_bytes, totals.n_bytes, as_i64(write.quota.max_bytes));
        // Writes that reduce a tenant's usage are always permitted.
        if [objects, bytes].into_iter().any(|(before, after, most)| after > before && after > most) {
            return Err(StoreError::Full);
        }
    }
    totals.write(connection, tenant).await?;
    Ok(written)
}

async fn write_one(
    connection: &mut AnyConnection,
    write: &ObjectWrite,
    totals: &mut Totals,
) -> Result<Written, StoreError> {
    let found = find(connection, &write.key).await?;
    if let Some(owner) = &write.owner
        && found.as_ref().is_none_or(|found| found.owner != *owner)
    {
        return Err(if found.is_some() { StoreError::LeaseLost } else { StoreError::UnknownObject });
    }
    let replaces = write.change.as_ref().map(|change| change.replaces.map(as_i64));
    let mut state = match (found, replaces) {
        (Some(found), None) => found,
        (Some(found), Some(Some(version))) if version == found.version => found,
        (Some(_), Some(_)) => return Err(StoreError::Conflict),
        (None, Some(None)) => {
            totals.n_objects += 1;
            totals.n_bytes += as_i64(ENTRY_BYTES);
            create(connection, &write.key).await?
        }
        (None, _) => return Err(StoreError::UnknownObject),
    };
    let n_bytes_before = state.n_bytes;
    let items = append(connection, &mut state, &write.items).await?;
    if let Some(change) = &write.change {
        state.version += 1;
        state.n_bytes += change.body.len() as i64 - state.body_bytes;
        write_change(connection, state.number, change).await?;
    }
    sqlx::query("UPDATE objects SET version = $2, n_items = $3, n_bytes = $4 WHERE number = $1")
        .bind(state.number)
        .bind(state.version)
        .bind(state.n_items)
        .bind(state.n_bytes)
        .execute(connection)
        .await?;
    totals.n_bytes += state.n_bytes - n_bytes_before;
    Ok(Written { version: state.version.unsigned_abs(), items })
}

async fn find(connection: &mut AnyConnection, key: &ObjectKey) -> Result<Option<State>, StoreError> {
    let found = sqlx::query(concat!(
        "SELECT number, version, n_items, n_bytes, CAST(LENGTH(body) AS BIGINT), owner
         FROM objects JOIN object_bodies ON object = number WHERE ",
        is_named!()
    ));
    let Some(row) = named(found, key).fetch_optional(connection).await? else { return Ok(None) };
    Ok(Some(State {
        number: row.try_get(0)?,
        version: row.try_get(1)?,
        n_items: row.try_get(2)?,
        n_bytes: row.try_get(3)?,
        body_bytes: row.try_get(4)?,
        owner: row.try_get(5)?,
    }))
}

/// Creates an empty object; its state is written afterwards.
async fn create(connection: &mut AnyConnection, key: &ObjectKey) -> Result<State, StoreError> {
    let n_bytes = as_i64(ENTRY_BYTES);
    let made = sqlx::query(
        "INSERT INTO objects (tenant, kind, id, parent, version, created_unix_s, expires_unix_s, is_pending,
            owner, beat, n_items, n_bytes)
         VALUES ($1, $2, $3, '', 0, 0, 0, 0, '', 0, 0, $4) ON CONFLICT (tenant, kind, id) DO NOTHING
         RETURNING number",
    )
    .bind(key.tenant.clone())
    .bind(key.kind.name())
    .bind(key.id.clone())
    .bind(n_bytes)
    .fetch_optional(connection)
    .await?;
    // An expired object keeps its key until it is deleted.
    let number = made.ok_or(StoreError::Conflict)?.try_get(0)?;
    Ok(State { number, version: 0, n_items: 0, n_bytes, body_bytes: 0, owner: String::new() })
}

async fn write_change(
    connection: &mut AnyConnection,
    number: i64,
    change: &ObjectChange,
) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE objects SET parent = $2, expires_unix_s = $3, is_pending = $4, created_unix_s = $5
         WHERE number = $1",
    )
    .bind(number)
    .bind(change.parent.clone().unwrap_or_default())
    .bind(change.expires_unix_s.map_or(i64::MAX, as_i64))
    .bind(i64::from(change.is_pending))
    .bind(as_i64(change.created_unix_s))
    .execute(&mut *connection)
    .await?;
    sqlx::query(
        "INSERT INTO object_bodies (object, body) VALUES ($1, $2)
         ON CONFLICT (object) DO UPDATE SET body = excluded.body",
    )
    .bind(number)
    .bind(change.body.clone())
    .execute(connection)
    .await?;
    Ok(())
}

/// Appends the new ones of these items.
async fn append(
    connection: &mut AnyConnection,
    state: &mut State,
    items: &[NewItem],
) -> Result<Vec<ItemPlace>, StoreError> {
    let mut places = Vec::with_capacity(items.len());
    for item in items {
        let added = sqlx::query(
            "INSERT INTO object_items (object, number, id, body) VALUES ($1, $2, $3, $4)
             ON CONFLICT (object, id) DO NOTHING",
        )
        .bind(state.number)
        .bind(state.n_items)
        .bind(item.id.clone())
        .bind(item.body.clone())
        .execute(&mut *connection)
        .await?;
        let is_new = added.rows_affected() == 1;
        let number = if is_new {
            state.n_items += 1;
            state.n_bytes += as_i64(ENTRY_BYTES) + item.body.len() as i64;
            state.n_items - 1
        } else {
            let row = sqlx::query("SELECT number FROM object_items WHERE object = $1 AND id = $2")
                .bind(state.number)
                .bind(item.id.clone())
                .fetch_one(&mut *connection)
                .await?;
            row.try_get(0)?
        };
        places.push(ItemPlace { number: number.unsigned_abs(), is_new });
    }
    Ok(places)
}
