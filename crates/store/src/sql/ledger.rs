//! The ledger in SQL: rows are added and never changed. Each key's tokens and money of each day are added up in the same transaction,
//! so that budgets need not read all rows.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::any::AnyRow;
use sqlx::{AnyConnection, AnyPool, AssertSqlSafe, Row};

use super::{Dialect, SqlStore};
use crate::error::StoreError;
use crate::ledger::{DailyTotal, LedgerEntry, MAX_USAGE_ROWS, UsageGroup, UsageQuery, UsageRow};
use crate::money::Cost;

const DAY_S: u64 = 86_400;
/// Most rows that one statement adds: each statement costs a change of threads, and each number of rows is a statement that a
/// connection keeps prepared, of which there are at most 100.
const ROWS_PER_STATEMENT: usize = 50;
/// Columns of the ledger.
const N_COLUMNS: usize = 17;
/// Sums of money are made of two sums, each of which fits into 64 bits.
const COST_PART: u128 = 1_000_000;

/// The number of days whose totals are not those of the ledger.
pub const DIFFERING_DAYS: &str = "SELECT COUNT(*) FROM (
        SELECT at_unix_s / 86400 AS day, key_id, project_id, CAST(SUM(prompt_tokens + generated_tokens) AS BIGINT) AS tokens,
            CAST(SUM(cost_picodollars) AS BIGINT) AS cost FROM ledger GROUP BY 1, 2, 3
    ) AS l FULL JOIN daily_totals d ON d.day = l.day AND d.key_id = l.key_id AND d.project_id = l.project_id
    WHERE l.tokens IS NULL OR d.tokens IS NULL OR l.tokens <> d.tokens OR l.cost <> d.cost_picodollars";

pub async fn append(store: &SqlStore, entries: &[LedgerEntry]) -> Result<(), StoreError> {
    let mut transaction = store.transaction().await?;
    let mut totals: BTreeMap<(u64, &str, &str), (&LedgerEntry, u64, i64)> = BTreeMap::new();
    for some in entries.chunks(ROWS_PER_STATEMENT) {
        let mut new = insert(&mut transaction, store.dialect, some).await?;
        // Of two with the same id the first is in the database.
        for entry in some.iter().filter(|entry| new.remove(&entry.id)) {
            let day = entry.at_unix_s / DAY_S;
            let total = totals.entry((day, &entry.key_id, &entry.project_id)).or_insert((entry, 0, 0));
            total.1 = total.1.saturating_add(entry.n_tokens());
            total.2 = total.2.saturating_add(cost_of(entry));
        }
    }
    // In the order of the keys, so that two servers cannot wait for one another.
    for ((day, key_id, project_id), (entry, n_tokens, cost)) in totals {
        sqlx::query(
            "INSERT INTO daily_totals (day, key_id, project_id, organisation_id, tokens, cost_picodollars)
             VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (day, key_id, project_id) DO UPDATE SET
             tokens = daily_totals.tokens + excluded.tokens,
             cost_picodollars = daily_totals.cost_picodollars + excluded.cost_picodollars",
        )
        .bind(as_i64(day))
        .bind(key_id)
        .bind(project_id)
        .bind(entry.organisation_id.as_str())
        .bind(as_i64(n_tokens))
        .bind(cost)
        .execute(&mut *transaction)
        .await?;
    }
    Ok(transaction.commit().await?)
}

/// Adds entries in one statement; the ids of those that were not there yet.
async fn insert(
    connection: &mut AnyConnection,
    dialect: Dialect,
    entries: &[LedgerEntry],
) -> Result<BTreeSet<String>, StoreError> {
    let row = |at: usize| {
        let places = (1..=N_COLUMNS).map(|column| dialect.place(at * N_COLUMNS + column));
        format!("({})", places.collect::<Vec<_>>().join(", "))
    };
    let rows: Vec<String> = (0..entries.len()).map(row).collect();
    let sql = format!(
        "INSERT INTO ledger (id, request_id, at_unix_s, organisation_id, project_id, key_id, user_name, model,
         prompt_tokens, cached_tokens, generated_tokens, prompt_price, cached_price, generated_price,
         cost_picodollars, latency_ms, outcome) VALUES {} ON CONFLICT (id) DO NOTHING RETURNING id",
        rows.join(", ")
    );
    // Numbers of parameters only.
    let mut statement = sqlx::query(AssertSqlSafe(sql));
    for entry in entries {
        statement = statement
            .bind(entry.id.as_str())
            .bind(entry.request_id.as_str())
            .bind(as_i64(entry.at_unix_s))
            .bind(entry.organisation_id.as_str())
            .bind(entry.project_id.as_str())
            .bind(entry.key_id.as_str())
            .bind(entry.user.as_str())
            .bind(entry.model.as_str())
            .bind(as_i64(entry.prompt_tokens))
            .bind(as_i64(entry.cached_tokens))
            .bind(as_i64(entry.generated_tokens))
            .bind(as_i64(entry.prices.prompt))
            .bind(as_i64(entry.prices.cached))
            .bind(as_i64(entry.prices.generated))
            .bind(cost_of(entry))
            .bind(as_i64(entry.latency_ms))
            .bind(entry.outcome.name());
    }
    let new = statement.fetch_all(connection).await?;
    new.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// Money that a row can hold.
fn cost_of(entry: &LedgerEntry) -> i64 {
    i64::try_from(entry.cost().0).unwrap_or(i64::MAX)
}

fn column(group: UsageGroup) -> &'static str {
    match group {
        UsageGroup::Project => "project_id",
        UsageGroup::User => "user_name",
        UsageGroup::Key => "key_id",
        UsageGroup::Model => "model",
    }
}

pub async fn usage(pool: &AnyPool, query: &UsageQuery) -> Result<Vec<UsageRow>, StoreError> {
    let columns =
        UsageGroup::ALL.map(|group| if query.group_by.contains(&group) { column(group) } else { "''" });
    let mut sql = format!(
        "SELECT CASE WHEN $3 = 0 THEN $1 ELSE $1 + (at_unix_s - $1) / $4 * $4 END AS bucket, {}, COUNT(*),
         CAST(SUM(prompt_tokens) AS BIGINT), CAST(SUM(cached_tokens) AS BIGINT), CAST(SUM(generated_tokens) AS BIGINT),
         CAST(SUM(cost_picodollars / {COST_PART}) AS BIGINT), CAST(SUM(cost_picodollars % {COST_PART}) AS BIGINT)
         FROM ledger WHERE at_unix_s >= $1 AND at_unix_s < $2",
        columns.join(", ")
    );
    let mut n_parameters = 4;
    for (group, names) in &query.only {
        let places: Vec<String> =
            names.iter().enumerate().map(|(i, _)| format!("${}", n_parameters + i + 1)).collect();
        n_parameters += names.len();
        sql += &format!(
            " AND {} IN ({})",
            column(*group),
            if places.is_empty() { "NULL".to_owned() } else { places.join(", ") }
        );
    }
    sql += &format!(" GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5 LIMIT {}", MAX_USAGE_ROWS + 1);
    // Column names and numbers of parameters only: what the caller says is bound.
    let mut statement = sqlx::query(AssertSqlSafe(sql))
        .bind(as_i64(query.start_unix_s))
        .bind(as_i64(query.end_unix_s))
        .bind(as_i64(query.bucket_width_s))
        .bind(as_i64(query.bucket_width_s.max(1)));
    for name in query.only.iter().flat_map(|(_, names)| names) {
        statement = statement.bind(name.as_str());
    }
    let rows = statement.fetch_all(pool).await?;
    if rows.len() > MAX_USAGE_ROWS {
        return Err(StoreError::TooManyRows(MAX_USAGE_ROWS));
    }
    rows.iter().map(usage_row).collect()
}

fn usage_row(row: &AnyRow) -> Result<UsageRow, StoreError> {
    Ok(UsageRow {
        start_unix_s: unsigned(row, 0)?,
        project_id: row.try_get(1)?,
        user: row.try_get(2)?,
        key_id: row.try_get(3)?,
        model: row.try_get(4)?,
        n_requests: unsigned(row, 5)?,
        prompt_tokens: unsigned(row, 6)?,
        cached_tokens: unsigned(row, 7)?,
        generated_tokens: unsigned(row, 8)?,
        cost: Cost(u128::from(unsigned(row, 9)?) * COST_PART + u128::from(unsigned(row, 10)?)),
    })
}

pub async fn daily_totals(pool: &AnyPool, from_day: u64) -> Result<Vec<DailyTotal>, StoreError> {
    let rows = sqlx::query(
        "SELECT day, organisation_id, project_id, key_id, tokens, cost_picodollars FROM daily_totals WHERE day >= $1",
    )
    .bind(as_i64(from_day))
    .fetch_all(pool)
    .await?;
    let total = |row: &AnyRow| {
        Ok(DailyTotal {
            day: unsigned(row, 0)?,
            organisation_id: row.try_get(1)?,
            project_id: row.try_get(2)?,
            key_id: row.try_get(3)?,
            n_tokens: unsigned(row, 4)?,
            cost: Cost(u128::from(unsigned(row, 5)?)),
        })
    };
    rows.iter().map(total).collect()
}

fn unsigned(row: &AnyRow, column: usize) -> Result<u64, StoreError> {
    let value: i64 = row.try_get(column)?;
    u64::try_from(value).map_err(|_| StoreError::Damaged("a negative number in the ledger".to_owned()))
}

fn as_i64(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
