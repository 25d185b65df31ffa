//! Leases of objects. The database decides which caller gets a lease: only one can succeed with the update.

use sqlx::{AnyPool, Row};

use super::{is_key, is_named, limit, named, unsigned};
use crate::answers::ClaimBeat;
use crate::bounds::as_i64;
use crate::error::StoreError;
use crate::objects::{Lease, ObjectKey, ObjectKind, PendingObject};
use crate::sql::text;

pub async fn claim(
    pool: &AnyPool,
    key: &ObjectKey,
    owner: &str,
    dead: Option<&ClaimBeat>,
) -> Result<Lease, StoreError> {
    if !is_key(key) {
        return Ok(Lease::Missing);
    }
    let claimed = sqlx::query(concat!(
        "UPDATE objects SET owner = $5, beat = 0 WHERE ",
        is_named!(),
        " AND (owner = '' OR (owner = $6 AND beat = $7))"
    ));
    let (dead_owner, dead_beat) = dead.map_or(("", 0), |dead| (dead.owner.as_str(), dead.beat));
    let claimed =
        named(claimed, key).bind(text(owner)).bind(text(dead_owner)).bind(as_i64(dead_beat)).execute(pool);
    if claimed.await?.rows_affected() == 1 {
        return Ok(Lease::Granted);
    }
    let found = sqlx::query(concat!("SELECT owner, beat FROM objects WHERE ", is_named!()));
    Ok(match named(found, key).fetch_optional(pool).await? {
        Some(row) => Lease::Taken(ClaimBeat { owner: row.try_get(0)?, beat: unsigned(&row, 1)? }),
        None => Lease::Missing,
    })
}

pub async fn beat(pool: &AnyPool, key: &ObjectKey, owner: &str) -> Result<bool, StoreError> {
    let beaten =
        sqlx::query(concat!("UPDATE objects SET beat = beat + 1 WHERE ", is_named!(), " AND owner = $5"));
    let beaten = named(beaten, key).bind(text(owner)).execute(pool).await?;
    Ok(beaten.rows_affected() == 1)
}

pub async fn release(pool: &AnyPool, key: &ObjectKey, owner: &str) -> Result<(), StoreError> {
    let released =
        sqlx::query(concat!("UPDATE objects SET owner = '' WHERE ", is_named!(), " AND owner = $5"));
    named(released, key).bind(text(owner)).execute(pool).await?;
    Ok(())
}

pub async fn pending(
    pool: &AnyPool,
    kind: ObjectKind,
    after: u64,
    n: usize,
) -> Result<Vec<PendingObject>, StoreError> {
    let rows = sqlx::query(
        "SELECT number, tenant, id, owner, beat FROM objects
         WHERE is_pending = 1 AND kind = $1 AND number > $2 ORDER BY number LIMIT $3",
    )
    .bind(kind.name())
    .bind(as_i64(after))
    .bind(limit(n))
    .fetch_all(pool)
    .await?;
    let pending = rows.iter().map(|row| {
        let owner: String = row.try_get(3)?;
        let beat = unsigned(row, 4)?;
        Ok(PendingObject {
            key: ObjectKey { tenant: row.try_get(1)?, kind, id: row.try_get(2)? },
            number: unsigned(row, 0)?,
            beat: (!owner.is_empty()).then_some(ClaimBeat { owner, beat }),
        })
    });
    pending.collect()
}
