//! Stored objects in SQL. Every write locks the tenant's row in `object_totals`, so that counts are exact
//! and two writers cannot deadlock.

mod items;
mod lease;
mod read;
mod upkeep;
mod write;

use futures_util::FutureExt;
use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, AnyConnection, Row};

use super::transaction::Transaction;
use super::{SqlStore, answered};
use crate::answers::ClaimBeat;
use crate::bounds::as_i64;
use crate::clock::now_unix_s;
use crate::error::StoreError;
use crate::future::StoreFuture;
use crate::objects::{
    ItemQuery, Lease, MAX_OBJECT_ID_BYTES, MAX_PAGE_BYTES, MAX_PAGE_ENTRIES, ObjectKey, ObjectKind,
    ObjectQuery, ObjectState, ObjectStore, ObjectUsage, ObjectWrite, PendingObject, StoredItem, StoredObject,
    Written,
};

/// The condition of an unexpired object with a key; [`named`] binds its four parameters.
macro_rules! is_named {
    () => {
        "tenant = $1 AND kind = $2 AND id = $3 AND expires_unix_s > $4"
    };
}
use is_named;

type Statement<'q> = Query<'q, Any, AnyArguments>;

/// Binds the parameters of `is_named`.
fn named<'q>(statement: Statement<'q>, key: &ObjectKey) -> Statement<'q> {
    statement.bind(key.tenant.clone()).bind(key.kind.name()).bind(key.id.clone()).bind(as_i64(now_unix_s()))
}

/// Whether a text can be an id or a tenant. Other texts are never found. They are not converted for the
/// database, since the result could be another one's id.
fn is_id(text: &str) -> bool {
    (1..=MAX_OBJECT_ID_BYTES).contains(&text.len()) && !text.chars().any(char::is_control)
}

fn is_key(key: &ObjectKey) -> bool {
    is_id(&key.tenant) && is_id(&key.id)
}

fn unsigned(row: &AnyRow, column: usize) -> Result<u64, StoreError> {
    Ok(row.try_get::<i64, _>(column)?.unsigned_abs())
}

/// The totals of a tenant. Their row is locked until the transaction ends.
#[derive(Debug, Clone, Copy)]
struct Totals {
    n_objects: i64,
    n_bytes: i64,
}

impl Totals {
    async fn lock(connection: &mut AnyConnection, tenant: &str) -> Result<Self, StoreError> {
        let locked = sqlx::query(
            "INSERT INTO object_totals (tenant, n_objects, n_bytes) VALUES ($1, 0, 0)
             ON CONFLICT (tenant) DO UPDATE SET n_objects = object_totals.n_objects RETURNING n_objects, n_bytes",
        );
        let row = locked.bind(tenant.to_owned()).fetch_one(connection).await?;
        Ok(Self { n_objects: row.try_get(0)?, n_bytes: row.try_get(1)? })
    }

    async fn write(self, connection: &mut AnyConnection, tenant: &str) -> Result<(), StoreError> {
        let written = if self.n_objects == 0 {
            sqlx::query("DELETE FROM object_totals WHERE tenant = $1").bind(tenant.to_owned())
        } else {
            sqlx::query("UPDATE object_totals SET n_objects = $2, n_bytes = $3 WHERE tenant = $1")
                .bind(tenant.to_owned())
                .bind(self.n_objects)
                .bind(self.n_bytes)
        };
        written.execute(connection).await?;
        Ok(())
    }
}

/// Commits a transaction. After a refusal, as opposed to a failure, rolls it back and keeps its connection
/// open.
async fn finish<T>(transaction: Transaction, done: Result<T, StoreError>) -> Result<T, StoreError> {
    match done {
        Ok(done) => transaction.commit().await.map(|()| done),
        Err(error @ (StoreError::Database(_) | StoreError::Refused(_))) => Err(error),
        Err(refused) => transaction.rollback().await.and(Err(refused)),
    }
}

/// Truncates a page of numbers and lengths, in its order, at the maximum bytes. Returns the lowest and the
/// highest remaining number.
fn cut(rows: &[AnyRow]) -> Result<Option<(i64, i64)>, StoreError> {
    let (mut bounds, mut n_bytes) = (None, 0_u64);
    for row in rows {
        let number: i64 = row.try_get(0)?;
        n_bytes = n_bytes.saturating_add(unsigned(row, 1)?);
        bounds = match bounds {
            None => Some((number, number)),
            Some(_) if n_bytes > MAX_PAGE_BYTES => break,
            Some((low, high)) => Some((number.min(low), number.max(high))),
        };
    }
    Ok(bounds)
}

fn limit(n: usize) -> i64 {
    as_i64(n.clamp(1, MAX_PAGE_ENTRIES) as u64)
}

impl ObjectStore for SqlStore {
    fn write_objects<'a>(&'a self, writes: &'a [ObjectWrite]) -> StoreFuture<'a, Vec<Written>> {
        self.written(write::write(self, writes)).boxed()
    }

    fn object<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, Option<StoredObject>> {
        answered(read::object(&self.pool, key)).boxed()
    }

    fn object_state<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, Option<ObjectState>> {
        answered(read::state(&self.pool, key)).boxed()
    }

    fn objects<'a>(&'a self, query: &'a ObjectQuery) -> StoreFuture<'a, Vec<StoredObject>> {
        answered(read::objects(&self.pool, query)).boxed()
    }

    fn object_versions<'a>(
        &'a self,
        tenant: &'a str,
        kind: ObjectKind,
        ids: &'a [&'a str],
    ) -> StoreFuture<'a, Vec<Option<u64>>> {
        answered(read::versions(&self.pool, tenant, kind, ids)).boxed()
    }

    fn delete_object<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, bool> {
        self.written(upkeep::delete(self, key)).boxed()
    }

    fn items<'a>(&'a self, query: &'a ItemQuery) -> StoreFuture<'a, Vec<StoredItem>> {
        answered(items::page(&self.pool, query)).boxed()
    }

    fn item_ids<'a>(&'a self, query: &'a ItemQuery) -> StoreFuture<'a, Vec<(u64, String)>> {
        answered(items::ids(&self.pool, query)).boxed()
    }

    fn item<'a>(&'a self, key: &'a ObjectKey, id: &'a str) -> StoreFuture<'a, Option<StoredItem>> {
        answered(items::one(&self.pool, key, id)).boxed()
    }

    fn delete_item<'a>(&'a self, key: &'a ObjectKey, id: &'a str) -> StoreFuture<'a, bool> {
        self.written(items::delete(self, key, id)).boxed()
    }

    fn claim_object<'a>(
        &'a self,
        key: &'a ObjectKey,
        owner: &'a str,
        dead: Option<&'a ClaimBeat>,
    ) -> StoreFuture<'a, Lease> {
        self.written(lease::claim(&self.pool, key, owner, dead)).boxed()
    }

    fn beat_object<'a>(&'a self, key: &'a ObjectKey, owner: &'a str) -> StoreFuture<'a, bool> {
        self.written(lease::beat(&self.pool, key, owner)).boxed()
    }

    fn release_object<'a>(&'a self, key: &'a ObjectKey, owner: &'a str) -> StoreFuture<'a, ()> {
        self.written(lease::release(&self.pool, key, owner)).boxed()
    }

    fn pending_objects(
        &self,
        kind: ObjectKind,
        after: u64,
        limit: usize,
    ) -> StoreFuture<'_, Vec<PendingObject>> {
        answered(lease::pending(&self.pool, kind, after, limit)).boxed()
    }

    fn forget_objects(&self) -> StoreFuture<'_, u64> {
        self.written(upkeep::forget(self)).boxed()
    }

    fn export_objects<'a>(
        &'a self,
        tenant: &'a str,
        after: u64,
        limit: usize,
    ) -> StoreFuture<'a, Vec<StoredObject>> {
        answered(read::export(&self.pool, tenant, after, limit)).boxed()
    }

    fn delete_objects<'a>(&'a self, tenant: &'a str) -> StoreFuture<'a, u64> {
        self.written(upkeep::delete_all(self, tenant)).boxed()
    }

    fn object_usage<'a>(&'a self, tenant: &'a str) -> StoreFuture<'a, ObjectUsage> {
        answered(read::usage(&self.pool, tenant)).boxed()
    }
}
