//! Reads objects: one, a page of a kind, a page of all kinds.

use std::collections::HashMap;

use sqlx::any::AnyRow;
use sqlx::{AnyPool, AssertSqlSafe, Row};

use super::{cut, is_id, is_key, is_named, limit, named, now_unix_s, unsigned};
use crate::bounds::as_i64;
use crate::error::StoreError;
use crate::objects::{
    ListOrder, MAX_PAGE_ENTRIES, ObjectKey, ObjectKind, ObjectQuery, ObjectState, ObjectUsage, StoredObject,
};

const COLUMNS: &str = "number, tenant, kind, id, parent, version, created_unix_s, expires_unix_s, is_pending,
    n_items, n_bytes, body";
/// The objects with their bodies, which have a table of their own.
const WITH_BODIES: &str = "objects JOIN object_bodies ON object = number";

pub async fn object(pool: &AnyPool, key: &ObjectKey) -> Result<Option<StoredObject>, StoreError> {
    if !is_key(key) {
        return Ok(None);
    }
    let sql = format!(concat!("SELECT {} FROM {} WHERE ", is_named!()), COLUMNS, WITH_BODIES);
    // The SQL contains only constant text.
    let row = named(sqlx::query(AssertSqlSafe(sql)), key).fetch_optional(pool).await?;
    row.map_or(Ok(None), |row| object_of(&row))
}

pub async fn state(pool: &AnyPool, key: &ObjectKey) -> Result<Option<ObjectState>, StoreError> {
    if !is_key(key) {
        return Ok(None);
    }
    let found = sqlx::query(concat!("SELECT version, is_pending, n_items FROM objects WHERE ", is_named!()));
    let row = named(found, key).fetch_optional(pool).await?;
    row.map(|row| {
        let is_pending = row.try_get::<i64, _>(1)? != 0;
        Ok(ObjectState { version: unsigned(&row, 0)?, is_pending, n_items: unsigned(&row, 2)? })
    })
    .transpose()
}

pub async fn versions(
    pool: &AnyPool,
    tenant: &str,
    kind: ObjectKind,
    ids: &[&str],
) -> Result<Vec<Option<u64>>, StoreError> {
    let ids = &ids[..ids.len().min(MAX_PAGE_ENTRIES)];
    if ids.is_empty() || !is_id(tenant) || !ids.iter().all(|id| is_id(id)) {
        return Ok(vec![None; ids.len()]);
    }
    let places: Vec<String> = (4..4 + ids.len()).map(|place| format!("${place}")).collect();
    let sql = format!(
        "SELECT id, version FROM objects
         WHERE tenant = $1 AND kind = $2 AND expires_unix_s > $3 AND id IN ({})",
        places.join(", ")
    );
    // The SQL contains only parameter numbers.
    let mut found =
        sqlx::query(AssertSqlSafe(sql)).bind(tenant.to_owned()).bind(kind.name()).bind(as_i64(now_unix_s()));
    for id in ids {
        found = found.bind((*id).to_owned());
    }
    let mut versions = HashMap::new();
    for row in found.fetch_all(pool).await? {
        versions.insert(row.try_get::<String, _>(0)?, unsigned(&row, 1)?);
    }
    Ok(ids.iter().map(|id| versions.get(*id).copied()).collect())
}

pub async fn objects(pool: &AnyPool, query: &ObjectQuery) -> Result<Vec<StoredObject>, StoreError> {
    if !is_id(&query.tenant) {
        return Ok(Vec::new());
    }
    let (is_beyond, order, start) = match query.order {
        ListOrder::Ascending => (">", "ASC", 0),
        ListOrder::Descending => ("<", "DESC", i64::MAX),
    };
    let start = match &query.after {
        None => start,
        Some(id) => number_of(pool, &ObjectKey::new(query.tenant.clone(), query.kind, id.clone())).await?,
    };
    let with_parent = if query.parent.is_some() { "AND parent = $6" } else { "" };
    let sql = format!(
        "SELECT number, CAST(LENGTH(body) AS BIGINT) FROM {WITH_BODIES}
         WHERE tenant = $1 AND kind = $2 AND expires_unix_s > $3 AND number {is_beyond} $4 {with_parent}
         ORDER BY number {order} LIMIT $5"
    );
    let mut numbers = sqlx::query(AssertSqlSafe(sql))
        .bind(query.tenant.clone())
        .bind(query.kind.name())
        .bind(as_i64(now_unix_s()))
        .bind(start)
        .bind(limit(query.limit));
    if let Some(parent) = &query.parent {
        numbers = numbers.bind(parent.clone());
    }
    let numbers = numbers.fetch_all(pool).await?;
    let Some((low, high)) = cut(&numbers)? else { return Ok(Vec::new()) };
    let with_parent = if query.parent.is_some() { "AND parent = $5" } else { "" };
    let sql = format!(
        "SELECT {COLUMNS} FROM {WITH_BODIES}
         WHERE tenant = $1 AND kind = $2 AND number BETWEEN $3 AND $4 {with_parent} ORDER BY number {order}"
    );
    let mut rows = sqlx::query(AssertSqlSafe(sql))
        .bind(query.tenant.clone())
        .bind(query.kind.name())
        .bind(low)
        .bind(high);
    if let Some(parent) = &query.parent {
        rows = rows.bind(parent.clone());
    }
    objects_of(&rows.fetch_all(pool).await?)
}

pub async fn export(
    pool: &AnyPool,
    tenant: &str,
    after: u64,
    n: usize,
) -> Result<Vec<StoredObject>, StoreError> {
    let sql = format!(
        "SELECT number, CAST(LENGTH(body) AS BIGINT) FROM {WITH_BODIES}
         WHERE tenant = $1 AND expires_unix_s > $2 AND number > $3 ORDER BY number LIMIT $4"
    );
    let numbers = sqlx::query(AssertSqlSafe(sql))
        .bind(tenant.to_owned())
        .bind(as_i64(now_unix_s()))
        .bind(as_i64(after))
        .bind(limit(n))
        .fetch_all(pool)
        .await?;
    let Some((low, high)) = cut(&numbers)? else { return Ok(Vec::new()) };
    let sql = format!(
        "SELECT {COLUMNS} FROM {WITH_BODIES} WHERE tenant = $1 AND number BETWEEN $2 AND $3 ORDER BY number"
    );
    let rows = sqlx::query(AssertSqlSafe(sql)).bind(tenant.to_owned()).bind(low).bind(high);
    objects_of(&rows.fetch_all(pool).await?)
}

pub async fn usage(pool: &AnyPool, tenant: &str) -> Result<ObjectUsage, StoreError> {
    let found = sqlx::query("SELECT n_objects, n_bytes FROM object_totals WHERE tenant = $1")
        .bind(tenant.to_owned())
        .fetch_optional(pool)
        .await?;
    found.map_or(Ok(ObjectUsage::default()), |row| {
        Ok(ObjectUsage { n_objects: unsigned(&row, 0)?, n_bytes: unsigned(&row, 1)? })
    })
}

/// The number of an object.
pub async fn number_of(pool: &AnyPool, key: &ObjectKey) -> Result<i64, StoreError> {
    if !is_key(key) {
        return Err(StoreError::UnknownObject);
    }
    let found = named(sqlx::query(concat!("SELECT number FROM objects WHERE ", is_named!())), key);
    let row = found.fetch_optional(pool).await?.ok_or(StoreError::UnknownObject)?;
    Ok(row.try_get(0)?)
}

fn objects_of(rows: &[AnyRow]) -> Result<Vec<StoredObject>, StoreError> {
    rows.iter().filter_map(|row| object_of(row).transpose()).collect()
}

/// Converts a row; `None` for a kind that only a newer version knows.
fn object_of(row: &AnyRow) -> Result<Option<StoredObject>, StoreError> {
    let kind: String = row.try_get(2)?;
    let Some(kind) = ObjectKind::of_name(&kind) else { return Ok(None) };
    let (parent, expires): (String, i64) = (row.try_get(4)?, row.try_get(7)?);
    Ok(Some(StoredObject {
        key: ObjectKey { tenant: row.try_get(1)?, kind, id: row.try_get(3)? },
        number: unsigned(row, 0)?,
        parent: (!parent.is_empty()).then_some(parent),
        version: unsigned(row, 5)?,
        created_unix_s: unsigned(row, 6)?,
        expires_unix_s: (expires != i64::MAX).then_some(expires.unsigned_abs()),
        is_pending: row.try_get::<i64, _>(8)? != 0,
        n_items: unsigned(row, 9)?,
        n_bytes: unsigned(row, 10)?,
        body: row.try_get(11)?,
    }))
}
