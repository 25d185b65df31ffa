//! Reads and deletes items of objects.

use sqlx::any::AnyRow;
use sqlx::{AnyPool, AssertSqlSafe, Row};

use super::read::number_of;
use super::{Totals, cut, finish, is_id, is_key, is_named, limit, named, unsigned};
use crate::bounds::as_i64;
use crate::error::StoreError;
use crate::objects::{ENTRY_BYTES, ItemAfter, ItemQuery, ListOrder, ObjectKey, StoredItem};
use crate::sql::SqlStore;

pub async fn page(pool: &AnyPool, query: &ItemQuery) -> Result<Vec<StoredItem>, StoreError> {
    let object = number_of(pool, &query.key).await?;
    let numbers = numbers(pool, query, object, "CAST(LENGTH(body) AS BIGINT)").await?;
    let Some((low, high)) = cut(&numbers)? else { return Ok(Vec::new()) };
    let sql = format!(
        "SELECT number, id, body FROM object_items WHERE object = $1 AND number BETWEEN $2 AND $3
         ORDER BY number {}",
        keyword(query.order)
    );
    // The SQL contains only constant text.
    let rows = sqlx::query(AssertSqlSafe(sql)).bind(object).bind(low).bind(high).fetch_all(pool).await?;
    rows.iter().map(item_of).collect()
}

pub async fn ids(pool: &AnyPool, query: &ItemQuery) -> Result<Vec<(u64, String)>, StoreError> {
    let object = number_of(pool, &query.key).await?;
    let rows = numbers(pool, query, object, "id").await?;
    rows.iter().map(|row| Ok((unsigned(row, 0)?, row.try_get(1)?))).collect()
}

pub async fn one(pool: &AnyPool, key: &ObjectKey, id: &str) -> Result<Option<StoredItem>, StoreError> {
    if !is_key(key) || !is_id(id) {
        return Ok(None);
    }
    let found = sqlx::query(concat!(
        "SELECT number, id, body FROM object_items WHERE object = (SELECT number FROM objects WHERE ",
        is_named!(),
        ") AND id = $5"
    ));
    let row = named(found, key).bind(id.to_owned()).fetch_optional(pool).await?;
    row.map(|row| item_of(&row)).transpose()
}

pub async fn delete(store: &SqlStore, key: &ObjectKey, id: &str) -> Result<bool, StoreError> {
    if !is_key(key) || !is_id(id) {
        return Ok(false);
    }
    let mut transaction = store.transaction().await?;
    let done = async {
        let mut totals = Totals::lock(&mut transaction, &key.tenant).await?;
        let deleted = sqlx::query(concat!(
            "DELETE FROM object_items WHERE object = (SELECT number FROM objects WHERE ",
            is_named!(),
            ") AND id = $5 RETURNING object, CAST(LENGTH(body) AS BIGINT)"
        ));
        let deleted = named(deleted, key).bind(id.to_owned()).fetch_optional(&mut *transaction).await?;
        if let Some(row) = &deleted {
            let n_bytes = row.try_get::<i64, _>(1)? + as_i64(ENTRY_BYTES);
            sqlx::query("UPDATE objects SET n_bytes = n_bytes - $2 WHERE number = $1")
                .bind(row.try_get::<i64, _>(0)?)
                .bind(n_bytes)
                .execute(&mut *transaction)
                .await?;
            totals.n_bytes -= n_bytes;
        }
        totals.write(&mut transaction, &key.tenant).await?;
        Ok(deleted.is_some())
    };
    let done = done.await;
    finish(transaction, done).await
}

/// The numbers of a page, with one further column.
async fn numbers(
    pool: &AnyPool,
    query: &ItemQuery,
    object: i64,
    column: &str,
) -> Result<Vec<AnyRow>, StoreError> {
    let (is_beyond, start) = match query.order {
        ListOrder::Ascending => (">", -1),
        ListOrder::Descending => ("<", i64::MAX),
    };
    let start = match &query.after {
        None => start,
        Some(ItemAfter::Number(number)) => as_i64(*number),
        Some(ItemAfter::Id(id)) => {
            let found = one_number(pool, object, id).await?;
            found.ok_or(StoreError::UnknownObject)?
        }
    };
    let sql = format!(
        "SELECT number, {column} FROM object_items WHERE object = $1 AND number {is_beyond} $2
         ORDER BY number {} LIMIT $3",
        keyword(query.order)
    );
    let rows = sqlx::query(AssertSqlSafe(sql)).bind(object).bind(start).bind(limit(query.limit));
    Ok(rows.fetch_all(pool).await?)
}

async fn one_number(pool: &AnyPool, object: i64, id: &str) -> Result<Option<i64>, StoreError> {
    if !is_id(id) {
        return Ok(None);
    }
    let found = sqlx::query("SELECT number FROM object_items WHERE object = $1 AND id = $2")
        .bind(object)
        .bind(id.to_owned())
        .fetch_optional(pool)
        .await?;
    found.map(|row| Ok(row.try_get(0)?)).transpose()
}

fn keyword(order: ListOrder) -> &'static str {
    match order {
        ListOrder::Ascending => "ASC",
        ListOrder::Descending => "DESC",
    }
}

fn item_of(row: &AnyRow) -> Result<StoredItem, StoreError> {
    Ok(StoredItem { number: unsigned(row, 0)?, id: row.try_get(1)?, body: row.try_get(2)? })
}
