//! The ledger in SQL: rows are added and never changed. What they add up to is kept beside them in the same transaction: each key's
//! tokens and money of each day, so that budgets need not read all rows, and what [`super::totals`] has for bills.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use sqlx::any::AnyRow;
use sqlx::{AnyConnection, AnyPool, AssertSqlSafe, Row};

use super::{Dialect, SqlStore, totals};
use crate::bounds::{MAX_ENTRY_TOKENS, MAX_TEXT_BYTES, as_i64, bounded_text};
use crate::error::StoreError;
use crate::ledger::{DailyTotal, LedgerEntry};
use crate::money::Cost;

pub const DAY_S: u64 = 86_400;
/// Most rows that one statement adds: each statement costs a change of threads, and each number of rows is a statement that a
/// connection keeps prepared, of which there are at most 100.
const ROWS_PER_STATEMENT: usize = 50;
/// Columns of the ledger.
const N_COLUMNS: usize = 17;

/// An entry as its row has it, within the bounds of the database.
#[derive(Debug)]
pub struct BoundedEntry<'a> {
    entry: &'a LedgerEntry,
    pub at_unix_s: i64,
    pub organisation_id: Cow<'a, str>,
    pub project_id: Cow<'a, str>,
    pub key_id: Cow<'a, str>,
    pub user: Cow<'a, str>,
    pub model: Cow<'a, str>,
    pub prompt_tokens: i64,
    pub cached_tokens: i64,
    pub generated_tokens: i64,
    pub cost_picodollars: i64,
}

impl<'a> BoundedEntry<'a> {
    fn new(entry: &'a LedgerEntry) -> Self {
        let text = |text: &'a String| bounded_text(text, MAX_TEXT_BYTES);
        let tokens = [entry.prompt_tokens, entry.cached_tokens, entry.generated_tokens];
        let [prompt, cached, generated] = tokens.map(|n| n.min(MAX_ENTRY_TOKENS));
        let cost = entry.prices.cost(prompt, cached, generated);
        Self {
            entry,
            at_unix_s: as_i64(entry.at_unix_s),
            organisation_id: text(&entry.organisation_id),
            project_id: text(&entry.project_id),
            key_id: text(&entry.key_id),
            user: text(&entry.user),
            model: text(&entry.model),
            prompt_tokens: as_i64(prompt),
            cached_tokens: as_i64(cached),
            generated_tokens: as_i64(generated),
            cost_picodollars: i64::try_from(cost.0).unwrap_or(i64::MAX),
        }
    }

    fn n_tokens(&self) -> i64 {
        self.prompt_tokens.saturating_add(self.generated_tokens)
    }
}

pub async fn append(store: &SqlStore, entries: &[LedgerEntry]) -> Result<(), StoreError> {
    let mut transaction = store.transaction().await?;
    let mut written = Vec::with_capacity(entries.len());
    for some in entries.chunks(ROWS_PER_STATEMENT) {
        let rows: Vec<BoundedEntry<'_>> = some.iter().map(BoundedEntry::new).collect();
        let mut new = insert(&mut transaction, store.dialect, &rows).await?;
        // Of two with the same id the first is in the database.
        written.extend(rows.into_iter().filter(|row| new.remove(&*id_of(row.entry))));
    }
    add_daily_totals(&mut transaction, &written).await?;
    totals::add(&mut transaction, store.dialect, &written).await?;
    transaction.commit().await
}

/// Tells what is wrong with an entry from what is wrong with the database: only the first may be set aside.
pub fn of_entry(error: sqlx::Error) -> StoreError {
    let is_of_entry = match &error {
        sqlx::Error::Encode(_) => true,
        sqlx::Error::Database(told) => {
            let code = told.code().unwrap_or_default();
            match code.len() {
                // SQLSTATE: data exceptions, constraints, and what is larger than the program allows.
                5 => ["22", "23", "54"].iter().any(|class| code.starts_with(class)),
                // SQLite's extended codes: too large, constraint, mismatch, out of range; sums have no code of their own.
                _ => {
                    let primary = code.parse::<u32>().map_or(0, |code| code & 0xff);
                    matches!(primary, 18 | 19 | 20 | 25) || told.message().contains("integer overflow")
                }
            }
        }
        _ => false,
    };
    if is_of_entry { StoreError::Refused(error) } else { StoreError::Database(error) }
}

fn id_of(entry: &LedgerEntry) -> Cow<'_, str> {
    bounded_text(&entry.id, MAX_TEXT_BYTES)
}

/// Adds up what each key has used on each day, in the order of the keys, so that two servers cannot wait for one another.
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
        // Text of the program only.
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

/// Adds entries in one statement; the ids of those that were not there yet.
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
    // Numbers of parameters only.
    let mut statement = sqlx::query(AssertSqlSafe(sql));
    for row in rows {
        let entry = row.entry;
        statement = statement
            .bind(id_of(entry).into_owned())
            .bind(bounded_text(&entry.request_id, MAX_TEXT_BYTES).into_owned())
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

/// What each key has used on days from the first of these on, until before the second.
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

/// A count or an amount. A negative one is a sum that an older version let overflow: it is as large as one can be.
pub fn unsigned(row: &AnyRow, column: usize) -> Result<u64, StoreError> {
    let value: i64 = row.try_get(column)?;
    Ok(u64::try_from(value).unwrap_or(i64::MAX as u64))
}
