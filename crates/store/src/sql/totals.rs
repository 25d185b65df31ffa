//! Hourly and daily sums of the ledger's rows, with and without grouping by user. Bills read these sums,
//! and rows only at the edges of their time range. A table of an older version has totals from the hour of
//! its upgrade on; earlier ones are computed hour by hour, backwards.

use std::collections::BTreeMap;

use sqlx::{AnyConnection, AssertSqlSafe, Row};

use super::entry::{BoundedEntry, DAY_S, of_entry, unsigned};
use super::transaction::Transaction;
use super::{Dialect, SqlStore};
use crate::bounds::as_i64;
use crate::error::StoreError;

pub const HOUR_S: u64 = 3_600;
/// Number of columns of a total.
const N_COLUMNS: usize = 13;
/// Numbers of rows in a statement: few, because a connection keeps each statement prepared.
const ROWS_PER_STATEMENT: [usize; 3] = [32, 8, 1];
/// Pico-dollars in a micro-dollar. Costs are summed as micro-dollars and remaining pico-dollars, so that no
/// sum comes near 64 bits.
pub const PICODOLLARS_PER_MICRODOLLAR: i64 = 1_000_000;
/// Columns that hold sums.
const SUMS: [&str; 6] =
    ["requests", "prompt_tokens", "cached_tokens", "generated_tokens", "cost_microdollars", "cost_rest"];

/// Dimensions of a total, in the order of its primary key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct TotalKey<'a> {
    width_s: i64,
    has_user: i64,
    start_unix_s: i64,
    project_id: &'a str,
    key_id: &'a str,
    model: &'a str,
    user: &'a str,
}

/// SQL that adds the inserted value to the existing one on a conflict, saturating.
pub fn saturating(table: &str, column: &str) -> String {
    format!(
        "{column} = CASE WHEN {table}.{column} > {max} - excluded.{column} THEN {max}
         ELSE {table}.{column} + excluded.{column} END",
        max = i64::MAX
    )
}

/// SQL for the sum of `columns`, or `most` if the sum is at least that, compared in millions. It consists
/// of two sums that fit into 64 bits.
pub fn sum_up_to(most: i64, columns: &[&str]) -> String {
    let all = |operator: &str| {
        let terms = columns.iter().map(|column| format!("SUM({column} {operator} 1000000)"));
        terms.collect::<Vec<_>>().join(" + ")
    };
    let (high, low) = (all("/"), all("%"));
    format!(
        "CAST(CASE WHEN ({high}) + ({low}) / 1000000 >= {} THEN {most}
         ELSE ({high}) * 1000000 + ({low}) END AS BIGINT)",
        most / 1_000_000
    )
}

/// SQL for the sum of a column, saturating.
fn saturating_sum(column: &str) -> String {
    sum_up_to(i64::MAX, &[column])
}

/// Adds new rows of the ledger to the totals.
pub async fn add(
    connection: &mut AnyConnection,
    dialect: Dialect,
    rows: &[BoundedEntry<'_>],
) -> Result<(), StoreError> {
    let mut totals: BTreeMap<TotalKey<'_>, [i64; SUMS.len()]> = BTreeMap::new();
    for row in rows {
        let cost = row.cost_picodollars;
        let added = [
            1,
            row.prompt_tokens,
            row.cached_tokens,
            row.generated_tokens,
            cost / PICODOLLARS_PER_MICRODOLLAR,
            cost % PICODOLLARS_PER_MICRODOLLAR,
        ];
        for (width_s, has_user) in [(HOUR_S, 0), (HOUR_S, 1), (DAY_S, 0), (DAY_S, 1)] {
            let width_s = as_i64(width_s);
            let key = TotalKey {
                width_s,
                has_user,
                start_unix_s: row.at_unix_s / width_s * width_s,
                project_id: &row.project_id,
                key_id: &row.key_id,
                model: &row.model,
                user: if has_user == 1 { &row.user } else { "" },
            };
            let sums = totals.entry(key).or_default();
            sums.iter_mut().zip(added).for_each(|(sum, more)| *sum = sum.saturating_add(more));
        }
    }
    // Keys in order, so that two servers cannot deadlock.
    let totals: Vec<_> = totals.into_iter().collect();
    let mut rest = &totals[..];
    for n_rows in ROWS_PER_STATEMENT {
        while rest.len() >= n_rows {
            let (some, others) = rest.split_at(n_rows);
            upsert(connection, dialect, some).await?;
            rest = others;
        }
    }
    Ok(())
}

async fn upsert(
    connection: &mut AnyConnection,
    dialect: Dialect,
    totals: &[(TotalKey<'_>, [i64; SUMS.len()])],
) -> Result<(), StoreError> {
    let added: Vec<String> = SUMS.iter().map(|column| saturating("usage_totals", column)).collect();
    let sql = format!(
        "INSERT INTO usage_totals (width_s, has_user, start_unix_s, project_id, key_id, model, user_name, {})
         VALUES {} ON CONFLICT (width_s, has_user, start_unix_s, project_id, key_id, model, user_name) DO UPDATE SET {}",
        SUMS.join(", "),
        dialect.places(totals.len(), N_COLUMNS),
        added.join(", ")
    );
    // The SQL contains only constant text and parameter numbers.
    let mut statement = sqlx::query(AssertSqlSafe(sql));
    for (key, sums) in totals {
        statement = statement
            .bind(key.width_s)
            .bind(key.has_user)
            .bind(key.start_unix_s)
            .bind(key.project_id)
            .bind(key.key_id)
            .bind(key.model)
            .bind(key.user);
        for sum in sums {
            statement = statement.bind(*sum);
        }
    }
    statement.execute(connection).await.map_err(of_entry)?;
    Ok(())
}

/// The second from which on the totals are complete.
pub async fn start(connection: &mut AnyConnection) -> Result<u64, StoreError> {
    let row = sqlx::query("SELECT unix_s FROM usage_totals_start").fetch_one(connection).await?;
    unsigned(&row, 0)
}

/// Computes the totals of the latest hour before the existing ones. Returns whether there are earlier
/// hours.
pub async fn make_earlier(store: &SqlStore) -> Result<bool, StoreError> {
    let mut transaction = alone(store).await?;
    let known = start(&mut transaction).await?;
    if known == 0 {
        transaction.rollback().await?;
        return Ok(false);
    }
    let latest = sqlx::query("SELECT MAX(at_unix_s) FROM ledger WHERE at_unix_s < $1").bind(as_i64(known));
    let latest: Option<i64> = latest.fetch_one(&mut *transaction).await?.try_get(0)?;
    let hour = latest.map_or(0, |at| at.max(0) / as_i64(HOUR_S) * as_i64(HOUR_S));
    if latest.is_some() {
        sqlx::raw_sql(AssertSqlSafe(make_hour(hour))).execute(&mut *transaction).await?;
    }
    sqlx::query("UPDATE usage_totals_start SET unix_s = $1").bind(hour).execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(hour > 0)
}

/// A transaction that is the only one to write totals; SQLite has one writer at a time.
async fn alone(store: &SqlStore) -> Result<Transaction, StoreError> {
    let mut transaction = store.transaction().await?;
    if store.dialect == Dialect::Postgres {
        let prepare = "SET LOCAL statement_timeout = '60s'; SET LOCAL lock_timeout = '60s';
             LOCK TABLE usage_totals IN SHARE ROW EXCLUSIVE MODE";
        sqlx::raw_sql(prepare).execute(&mut *transaction).await?;
    }
    Ok(transaction)
}

/// Computes the totals of an hour again if they lack rows: servers of an older version on the same database
/// do not update them. Returns whether they did.
pub async fn repair(store: &SqlStore, unix_s: u64) -> Result<bool, StoreError> {
    let hour = as_i64(unix_s / HOUR_S * HOUR_S);
    let missing = format!(
        "SELECT (SELECT COUNT(*) FROM ledger WHERE at_unix_s >= {hour} AND at_unix_s < {})
         - (SELECT CAST(COALESCE(SUM(requests), 0) AS BIGINT) FROM usage_totals
            WHERE width_s = {HOUR_S} AND has_user = 0 AND start_unix_s = {hour})",
        hour.saturating_add(as_i64(HOUR_S))
    );
    // The SQL contains only numbers.
    let missing = sqlx::query(AssertSqlSafe(missing)).persistent(false).fetch_one(&store.pool).await?;
    if missing.try_get::<i64, _>(0)? == 0 {
        return Ok(false);
    }
    let mut transaction = alone(store).await?;
    if start(&mut transaction).await? > unix_s {
        // These totals will be computed by `make_earlier`.
        transaction.rollback().await?;
        return Ok(false);
    }
    sqlx::raw_sql(AssertSqlSafe(make_hour(hour))).execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(true)
}

/// Statements that compute the totals of an hour from the ledger, and those of its day from its hours.
fn make_hour(hour: i64) -> String {
    let columns = SUMS.join(", ");
    let sums = SUMS.map(saturating_sum).join(", ");
    let of_rows = [
        "COUNT(*)".to_owned(),
        saturating_sum("prompt_tokens"),
        saturating_sum("cached_tokens"),
        saturating_sum("generated_tokens"),
        saturating_sum(&format!("(cost_picodollars / {PICODOLLARS_PER_MICRODOLLAR})")),
        saturating_sum(&format!("(cost_picodollars % {PICODOLLARS_PER_MICRODOLLAR})")),
    ];
    let insert =
        "INSERT INTO usage_totals (width_s, has_user, start_unix_s, project_id, key_id, model, user_name,";
    let (hour_end, day) = (hour.saturating_add(as_i64(HOUR_S)), hour / as_i64(DAY_S) * as_i64(DAY_S));
    let day_end = day.saturating_add(as_i64(DAY_S));
    format!(
        "DELETE FROM usage_totals WHERE width_s = {HOUR_S} AND has_user IN (0, 1) AND start_unix_s = {hour};
         {insert} {columns}) SELECT {HOUR_S}, 1, {hour}, project_id, key_id, model, user_name, {} FROM ledger
             WHERE at_unix_s >= {hour} AND at_unix_s < {hour_end} GROUP BY project_id, key_id, model, user_name;
         {insert} {columns}) SELECT {HOUR_S}, 0, {hour}, project_id, key_id, model, '', {sums} FROM usage_totals
             WHERE width_s = {HOUR_S} AND has_user = 1 AND start_unix_s = {hour} GROUP BY project_id, key_id, model;
         DELETE FROM usage_totals WHERE width_s = {DAY_S} AND has_user IN (0, 1) AND start_unix_s = {day};
         {insert} {columns}) SELECT {DAY_S}, has_user, {day}, project_id, key_id, model, user_name, {sums} FROM usage_totals
             WHERE width_s = {HOUR_S} AND has_user IN (0, 1) AND start_unix_s >= {day} AND start_unix_s < {day_end}
             GROUP BY has_user, project_id, key_id, model, user_name;",
        of_rows.join(", ")
    )
}
