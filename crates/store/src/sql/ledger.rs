//! The ledger in SQL: rows are added and never changed. The same transaction updates their sums: tokens and
//! money of each key and day, so that budgets need not read all rows, and the totals of [`super::totals`]
//! for bills.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::any::AnyRow;
use sqlx::{AnyConnection, AnyPool, AssertSqlSafe, Row};

use super::entry::{BoundedEntry, DAY_S, of_entry, unsigned};
use super::{Dialect, SqlStore, totals};
use crate::bounds::as_i64;
use crate::error::StoreError;
use crate::ledger::{DailyTotal, LedgerEntry};
use crate::money::Cost;

/// Maximum number of rows in a statement. Each statement costs a thread switch, and each number of rows is
/// a statement of its own among the at most 100 that a connection keeps prepared.
const ROWS_PER_STATEMENT: usize = 50;
/// Number of columns of the ledger.
const N_COLUMNS: usize = 17;

pub async fn append(store: &SqlStore, entries: &[LedgerEntry]) -> Result<(), StoreError> {
    let mut transaction = store.transaction().await?;
    let mut written = Vec::with_capacity(entries.len());
    for some in entries.chunks(ROWS_PER_STATEMENT) {
        let rows: Vec<BoundedEntry<'_>> = some.iter().map(BoundedEntry::new).collect();
        let mut new = insert(&mut transaction, store.dialect, &rows).await?;
        // Of two entries with the same id, the first is stored and counted.
        written.extend(rows.into_iter().filter(|row| new.remove(&*row.id)));
    }
    add_daily_totals(&mut transaction, &written).await?;
    totals::add(&mut transaction, store.dialect, &written).await?;
    transaction.commit().await
}

/// Updates the daily totals of each key. Keys are in order, so that two servers cannot deadlock.
async fn add_daily_totals(
    connection: &mut AnyConnection,
    rows: &[BoundedEntry<'_>],
) -> Result<(), StoreError> {
    let mut totals: BTreeMap<(i64, &str, &str), (&str, i64, i64)> = BTreeMap::new();
    for row in rows {
        let key = (row.at_unix_s / as_i64(DAY_S), &*row.key_id, &*row.project_id);
        let total = totals.entry(key).or_insert((&row.organisation_id, 0, 0));
        total.1 = total.1.saturating_add(row.n_tokens());
        total.2 = total.2.saturating_add(row.cost_picodollars);
    }
    let sql = format!(
        "INSERT INTO daily_totals (day, key_id, project_id, organisation_id, tokens, cost_picodollars)
         VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (day, key_id, project_id) DO UPDATE SET {}, {}",
        totals::saturating("daily_totals", "tokens"),
        totals::saturating("daily_totals", "cost_picodollars"),
    );
    for ((day, key_id, project_id), (organisation_id, n_tokens, cost)) in totals {
        // The SQL contains only constant text.
        sqlx::query(AssertSqlSafe(sql.clone()))
            .bind(day)
            .bind(key_id)
            .bind(project_id)
            .bind(organisation_id)
            .bind(n_tokens)
            .bind(cost)
            .execute(&mut *connection)
            .await
            .map_err(of_entry)?;
    }
    Ok(())
}

/// Adds entries in one statement. Returns the ids of the new ones.
async fn insert(
    connection: &mut AnyConnection,
    dialect: Dialect,
    rows: &[BoundedEntry<'_>],
) -> Result<BTreeSet<String>, StoreError> {
    let sql = format!(
        "INSERT INTO ledger (id, request_id, at_unix_s, organisation_id, project_id, key_id, user_name, model,
         prompt_tokens, cached_tokens, generated_tokens, prompt_price, cached_price, generated_price,
         cost_picodollars, latency_ms, outcome) VALUES {} ON CONFLICT (id) DO NOTHING RETURNING id",
        dialect.places(rows.len(), N_COLUMNS)
    );
    // The SQL contains only parameter numbers.
    let mut statement = sqlx::query(AssertSqlSafe(sql));
    for row in rows {
        let entry = row.entry;
        statement = statement
            .bind(&*row.id)
            .bind(&*row.request_id)
            .bind(row.at_unix_s)
            .bind(&*row.organisation_id)
            .bind(&*row.project_id)
            .bind(&*row.key_id)
            .bind(&*row.user)
            .bind(&*row.model)
            .bind(row.prompt_tokens)
            .bind(row.cached_tokens)
            .bind(row.generated_tokens)
            .bind(as_i64(entry.prices.prompt))
            .bind(as_i64(entry.prices.cached))
            .bind(as_i64(entry.prices.generated))
            .bind(row.cost_picodollars)
            .bind(as_i64(entry.latency_ms))
            .bind(entry.outcome.name());
    }
    let new = statement.fetch_all(connection).await.map_err(of_entry)?;
    new.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// Usage of each key on each day of the range.
pub async fn daily_totals(
    pool: &AnyPool,
    (from_day, until_day): (u64, u64),
) -> Result<Vec<DailyTotal>, StoreError> {
    let rows = sqlx::query(
        "SELECT day, organisation_id, project_id, key_id, tokens, cost_picodollars FROM daily_totals
         WHERE day >= $1 AND day < $2",
    )
    .bind(as_i64(from_day))
    .bind(as_i64(until_day))
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
