//! Deletes objects with their items: one, expired ones, all of a tenant.

use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};

use super::{Totals, finish, is_key, is_named, named, now_unix_s};
use crate::bounds::as_i64;
use crate::error::StoreError;
use crate::objects::ObjectKey;
use crate::sql::SqlStore;

/// Maximum number of objects deleted in a transaction.
const N_DELETED: i64 = 100;
/// Number of deleted bytes after which a transaction ends.
const DELETED_BYTES: i64 = 64 << 20;

pub async fn delete(store: &SqlStore, key: &ObjectKey) -> Result<bool, StoreError> {
    if !is_key(key) {
        return Ok(false);
    }
    let mut transaction = store.transaction().await?;
    let done = async {
        let totals = Totals::lock(&mut transaction, &key.tenant).await?;
        let found = sqlx::query(concat!("SELECT number, n_bytes FROM objects WHERE ", is_named!()));
        let rows = named(found, key).fetch_all(&mut *transaction).await?;
        delete_rows(&mut transaction, &key.tenant, totals, &rows).await
    };
    let done = done.await;
    finish(transaction, done).await.map(|n| n > 0)
}

pub async fn forget(store: &SqlStore) -> Result<u64, StoreError> {
    let now = as_i64(now_unix_s());
    let first = sqlx::query("SELECT tenant FROM objects WHERE expires_unix_s <= $1 LIMIT 1").bind(now);
    let Some(row) = first.fetch_optional(&store.pool).await? else { return Ok(0) };
    delete_some(store, &row.try_get::<String, _>(0)?, now).await
}

pub async fn delete_all(store: &SqlStore, tenant: &str) -> Result<u64, StoreError> {
    delete_some(store, tenant, i64::MAX).await
}

/// Deletes some of the tenant's objects that expire by this time.
async fn delete_some(store: &SqlStore, tenant: &str, until_unix_s: i64) -> Result<u64, StoreError> {
    let mut transaction = store.transaction().await?;
    let done = async {
        let totals = Totals::lock(&mut transaction, tenant).await?;
        let rows = sqlx::query(
            "SELECT number, n_bytes FROM objects WHERE tenant = $1 AND expires_unix_s <= $2
             ORDER BY number LIMIT $3",
        )
        .bind(tenant.to_owned())
        .bind(until_unix_s)
        .bind(N_DELETED)
        .fetch_all(&mut *transaction)
        .await?;
        delete_rows(&mut transaction, tenant, totals, &rows).await
    };
    let done = done.await;
    finish(transaction, done).await
}

/// Deletes objects, given by number and bytes, up to [`DELETED_BYTES`]. Returns their number.
async fn delete_rows(
    connection: &mut AnyConnection,
    tenant: &str,
    mut totals: Totals,
    rows: &[AnyRow],
) -> Result<u64, StoreError> {
    let (mut n, mut deleted_bytes) = (0, 0);
    for row in rows {
        if deleted_bytes >= DELETED_BYTES {
            break;
        }
        let (number, n_bytes): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        for sql in [
            "DELETE FROM object_items WHERE object = $1",
            "DELETE FROM object_bodies WHERE object = $1",
            "DELETE FROM objects WHERE number = $1",
        ] {
            sqlx::query(sql).bind(number).execute(&mut *connection).await?;
        }
        totals.n_objects -= 1;
        totals.n_bytes -= n_bytes;
        deleted_bytes += n_bytes;
        n += 1;
    }
    totals.write(connection, tenant).await?;
    Ok(n)
}
