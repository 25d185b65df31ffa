//! A ledger entry as a row, within the bounds of both databases, and the classification of errors about
//! entries.

use std::borrow::Cow;

use sqlx::Row;
use sqlx::any::AnyRow;

use crate::bounds::{MAX_ENTRY_TOKENS, MAX_TEXT_BYTES, as_i64, bounded_text};
use crate::error::StoreError;
use crate::ledger::LedgerEntry;

/// Number of seconds of a day.
pub const DAY_S: u64 = 86_400;

/// A ledger entry as a row, within the bounds of the database.
#[derive(Debug)]
pub struct BoundedEntry<'a> {
    pub entry: &'a LedgerEntry,
    pub id: Cow<'a, str>,
    pub request_id: Cow<'a, str>,
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
    pub fn new(entry: &'a LedgerEntry) -> Self {
        let text = |text: &'a String| bounded_text(text, MAX_TEXT_BYTES);
        let tokens = [entry.prompt_tokens, entry.cached_tokens, entry.generated_tokens];
        let [prompt, cached, generated] = tokens.map(|n| n.min(MAX_ENTRY_TOKENS));
        let cost = entry.prices.cost(prompt, cached, generated);
        Self {
            entry,
            id: text(&entry.id),
            request_id: text(&entry.request_id),
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

    pub fn n_tokens(&self) -> i64 {
        self.prompt_tokens.saturating_add(self.generated_tokens)
    }
}

/// Converts an error into [`StoreError::Refused`] if the entry is at fault and not the database: only such
/// entries may be set aside.
pub fn of_entry(error: sqlx::Error) -> StoreError {
    let is_of_entry = match &error {
        sqlx::Error::Encode(_) => true,
        sqlx::Error::Database(told) => {
            let code = told.code().unwrap_or_default();
            match code.len() {
                // SQLSTATE classes: data exceptions, constraint violations, program limits exceeded.
                5 => ["22", "23", "54"].iter().any(|class| code.starts_with(class)),
                // SQLite's extended codes: too large, constraint, mismatch, out of range. Integer overflow
                // has no code of its own.
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

/// Reads a count or an amount. A negative one is a sum that overflowed in an older version; it becomes the
/// maximum.
pub fn unsigned(row: &AnyRow, column: usize) -> Result<u64, StoreError> {
    let value: i64 = row.try_get(column)?;
    Ok(u64::try_from(value).unwrap_or(i64::MAX as u64))
}
