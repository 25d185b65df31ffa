//! Stored answers in SQL. The database decides which caller gets a claim: only one can succeed with the
//! insert or update.

use sqlx::any::AnyRow;
use sqlx::{AnyPool, Row};

use super::SqlStore;
use super::text;
use crate::answers::{AnswerClaim, ClaimBeat, Claimed, KeptAnswer, MAX_ANSWER_BYTES, MAX_ANSWERS};
use crate::bounds::as_i64;
use crate::error::StoreError;

/// Number of oldest answers deleted at a time to make room.
const N_FORGOTTEN: i64 = 100;
/// Maximum number of expired answers deleted at a time.
const N_EXPIRED: i64 = 1_000;

pub async fn claim(
    store: &SqlStore,
    claim: &AnswerClaim,
    now_unix_s: u64,
    dead: Option<&ClaimBeat>,
) -> Result<Claimed, StoreError> {
    let mut transaction = store.transaction().await?;
    sqlx::query("DELETE FROM answers WHERE tenant = $1 AND name = $2 AND expires_unix_s <= $3")
        .bind(text(&claim.tenant))
        .bind(text(&claim.key))
        .bind(as_i64(now_unix_s))
        .execute(&mut *transaction)
        .await?;
    let inserted = sqlx::query(
        "INSERT INTO answers (tenant, name, request, owner, beat, expires_unix_s, is_whole, content_type, body)
         VALUES ($1, $2, $3, $4, 0, $5, 0, '', $6) ON CONFLICT (tenant, name) DO NOTHING",
    )
    .bind(text(&claim.tenant))
    .bind(text(&claim.key))
    .bind(text(&claim.request))
    .bind(text(&claim.owner))
    .bind(as_i64(claim.expires_unix_s))
    .bind(Vec::<u8>::new())
    .execute(&mut *transaction)
    .await?;
    if inserted.rows_affected() == 1 {
        let has_room = make_room(&mut transaction, &text(&claim.tenant)).await?;
        return if has_room {
            transaction.commit().await?;
            Ok(Claimed::Granted)
        } else {
            transaction.rollback().await?;
            Ok(Claimed::Full)
        };
    }
    let row = sqlx::query(
        "SELECT request, owner, beat, is_whole, content_type, body FROM answers WHERE tenant = $1 AND name = $2",
    )
    .bind(text(&claim.tenant))
    .bind(text(&claim.key))
    .fetch_one(&mut *transaction)
    .await?;
    let found = found(&row, claim)?;
    let found = match (&found, dead) {
        (Claimed::Taken(beat), Some(dead)) if beat == dead => {
            let taken = sqlx::query(
                "UPDATE answers SET owner = $3, beat = 0
                 WHERE tenant = $1 AND name = $2 AND owner = $4 AND beat = $5 AND is_whole = 0",
            )
            .bind(text(&claim.tenant))
            .bind(text(&claim.key))
            .bind(text(&claim.owner))
            .bind(text(&dead.owner))
            .bind(as_i64(dead.beat))
            .execute(&mut *transaction)
            .await?;
            if taken.rows_affected() == 1 { Claimed::Granted } else { found }
        }
        _ => found,
    };
    transaction.commit().await?;
    Ok(found)
}

fn found(row: &AnyRow, claim: &AnswerClaim) -> Result<Claimed, StoreError> {
    let request: String = row.try_get(0)?;
    if request != text(&claim.request) {
        return Ok(Claimed::OtherRequest);
    }
    let is_whole: i64 = row.try_get(3)?;
    if is_whole == 0 {
        let beat: i64 = row.try_get(2)?;
        return Ok(Claimed::Taken(ClaimBeat { owner: row.try_get(1)?, beat: beat.unsigned_abs() }));
    }
    Ok(Claimed::Answered(KeptAnswer { content_type: row.try_get(4)?, body: row.try_get(5)? }))
}

/// Deletes the tenant's oldest answers if there are too many. Returns whether there is room.
async fn make_room(connection: &mut sqlx::AnyConnection, tenant: &str) -> Result<bool, StoreError> {
    let row = sqlx::query(
        "SELECT COUNT(*), CAST(COALESCE(SUM(LENGTH(body)), 0) AS BIGINT) FROM answers WHERE tenant = $1",
    )
    .bind(tenant)
    .fetch_one(&mut *connection)
    .await?;
    let (n, bytes): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    if n <= as_i64(MAX_ANSWERS) && bytes <= as_i64(MAX_ANSWER_BYTES) {
        return Ok(true);
    }
    let forgotten = sqlx::query(
        "DELETE FROM answers WHERE tenant = $1 AND name IN
         (SELECT name FROM answers WHERE tenant = $1 AND is_whole = 1 ORDER BY expires_unix_s LIMIT $2)",
    )
    .bind(tenant)
    .bind(N_FORGOTTEN)
    .execute(connection)
    .await?;
    Ok(forgotten.rows_affected() > 0)
}

/// Sends a heartbeat of a claim. Returns whether the caller still has it.
pub async fn beat(pool: &AnyPool, claim: &AnswerClaim) -> Result<bool, StoreError> {
    let beaten = sqlx::query(
        "UPDATE answers SET beat = beat + 1 WHERE tenant = $1 AND name = $2 AND owner = $3 AND is_whole = 0",
    )
    .bind(text(&claim.tenant))
    .bind(text(&claim.key))
    .bind(text(&claim.owner))
    .execute(pool)
    .await?;
    Ok(beaten.rows_affected() == 1)
}

/// Stores the answer if the caller still has the claim. Returns whether it does.
pub async fn keep(pool: &AnyPool, claim: &AnswerClaim, answer: &KeptAnswer) -> Result<bool, StoreError> {
    let kept = sqlx::query(
        "UPDATE answers SET is_whole = 1, content_type = $4, body = $5
         WHERE tenant = $1 AND name = $2 AND owner = $3 AND is_whole = 0",
    )
    .bind(text(&claim.tenant))
    .bind(text(&claim.key))
    .bind(text(&claim.owner))
    .bind(text(&answer.content_type))
    .bind(answer.body.clone())
    .execute(pool)
    .await?;
    Ok(kept.rows_affected() == 1)
}

/// Releases the claim, if the caller still has it.
pub async fn release(pool: &AnyPool, claim: &AnswerClaim) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM answers WHERE tenant = $1 AND name = $2 AND owner = $3 AND is_whole = 0")
        .bind(text(&claim.tenant))
        .bind(text(&claim.key))
        .bind(text(&claim.owner))
        .execute(pool)
        .await?;
    Ok(())
}

/// Deletes some expired answers. Returns their number.
pub async fn forget(pool: &AnyPool, now_unix_s: u64) -> Result<u64, StoreError> {
    let forgotten = sqlx::query(
        "DELETE FROM answers WHERE (tenant, name) IN
         (SELECT tenant, name FROM answers WHERE expires_unix_s <= $1 LIMIT $2)",
    )
    .bind(as_i64(now_unix_s))
    .bind(N_EXPIRED)
    .execute(pool)
    .await?;
    Ok(forgotten.rows_affected())
}
