//! Checks that totals beside the ledger and the objects equal the sums of their rows. Does not know files
//! and servers.

use sqlx::{AnyPool, AssertSqlSafe, Row};

use super::entry::DAY_S;
use super::totals::{HOUR_S, sum_up_to};
use crate::error::StoreError;
use crate::objects::ENTRY_BYTES;

/// Largest sum; larger ones are clamped to it.
const LARGEST: i64 = i64::MAX / 1_000_000 * 1_000_000;

/// SQL for a sum, clamped to [`LARGEST`].
fn sum(columns: &[&str]) -> String {
    sum_up_to(LARGEST, columns)
}

fn bounded(column: &str) -> String {
    format!("CASE WHEN {column} >= {LARGEST} THEN {LARGEST} ELSE {column} END")
}

/// Compares the totals with the rows.
pub async fn check(pool: &AnyPool) -> Result<(), StoreError> {
    check_objects(pool).await?;
    let differing_days = format!(
        "SELECT COUNT(*) FROM (
            SELECT at_unix_s / {DAY_S} AS day, key_id, project_id, {} AS tokens, {} AS cost FROM ledger GROUP BY 1, 2, 3
         ) AS l FULL JOIN daily_totals d ON d.day = l.day AND d.key_id = l.key_id AND d.project_id = l.project_id
         WHERE l.tokens IS NULL OR d.tokens IS NULL OR l.tokens <> {} OR l.cost <> {}",
        sum(&["prompt_tokens", "generated_tokens"]),
        sum(&["cost_picodollars"]),
        bounded("d.tokens"),
        bounded("d.cost_picodollars"),
    );
    none_differ(pool, &differing_days, "days have totals that differ from the ledger's").await?;
    let row = sqlx::query("SELECT unix_s FROM usage_totals_start").fetch_one(pool).await?;
    let start: i64 = row.try_get(0)?;
    for width in [HOUR_S as i64, DAY_S as i64] {
        // Totals are complete from here on.
        let start = start.saturating_add(width - 1) / width * width;
        for has_user in [0, 1] {
            let user = if has_user == 1 { "user_name" } else { "''" };
            let differing = format!(
                "SELECT COUNT(*) FROM (
                    SELECT at_unix_s / {width} * {width} AS moment, project_id, key_id, model, {user} AS user_name,
                        COUNT(*) AS n, {} AS prompt, {} AS cached, {} AS generated FROM ledger
                    WHERE at_unix_s >= {start} GROUP BY 1, 2, 3, 4, 5
                 ) AS l FULL JOIN (
                    SELECT * FROM usage_totals WHERE width_s = {width} AND has_user = {has_user} AND start_unix_s >= {start}
                 ) AS t ON t.start_unix_s = l.moment AND t.project_id = l.project_id AND t.key_id = l.key_id
                    AND t.model = l.model AND t.user_name = l.user_name
                 WHERE l.n IS NULL OR t.requests IS NULL OR l.n <> t.requests OR l.prompt <> {} OR l.cached <> {}
                    OR l.generated <> {}",
                sum(&["prompt_tokens"]),
                sum(&["cached_tokens"]),
                sum(&["generated_tokens"]),
                bounded("t.prompt_tokens"),
                bounded("t.cached_tokens"),
                bounded("t.generated_tokens"),
            );
            none_differ(pool, &differing, "totals of usage differ from the ledger's rows").await?;
        }
    }
    Ok(())
}

/// Compares the totals of tenants with their objects, and those of objects with their items.
async fn check_objects(pool: &AnyPool) -> Result<(), StoreError> {
    let differing_tenants = "SELECT COUNT(*) FROM (
            SELECT tenant, COUNT(*) AS n, CAST(SUM(n_bytes) AS BIGINT) AS bytes FROM objects GROUP BY tenant
         ) AS o FULL JOIN object_totals t ON t.tenant = o.tenant
         WHERE o.n IS NULL OR t.n_objects IS NULL OR o.n <> t.n_objects OR o.bytes <> t.n_bytes";
    none_differ(pool, differing_tenants, "tenants have totals that differ from their objects'").await?;
    let differing_objects = format!(
        "SELECT COUNT(*) FROM objects o LEFT JOIN object_bodies b ON b.object = o.number
         WHERE b.object IS NULL OR o.n_bytes <> {ENTRY_BYTES} + LENGTH(b.body) + (
            SELECT COALESCE(SUM({ENTRY_BYTES} + LENGTH(i.body)), 0) FROM object_items i WHERE i.object = o.number)"
    );
    none_differ(pool, &differing_objects, "objects have other sizes than they say").await
}

async fn none_differ(pool: &AnyPool, counting: &str, what: &str) -> Result<(), StoreError> {
    // The SQL contains only constant text and numbers.
    let row = sqlx::query(AssertSqlSafe(counting.to_owned())).persistent(false).fetch_one(pool).await?;
    match row.try_get::<i64, _>(0)? {
        0 => Ok(()),
        n => Err(StoreError::Damaged(format!("{n} {what}"))),
    }
}
