//! The audit in SQL: the database itself refuses to change or delete its rows.

use sqlx::any::AnyRow;
use sqlx::{AnyPool, AssertSqlSafe, Row};

use super::SqlStore;
use super::entry::of_entry;
use super::short_text;
use crate::audit::{AuditEvent, AuditLine, AuditQuery, MAX_AUDIT_LINES};
use crate::bounds::as_i64;
use crate::error::StoreError;

/// Maximum number of rows in a statement, as for the ledger.
const ROWS_PER_STATEMENT: usize = 50;
const COLUMNS: &str =
    "id, at_unix_ms, event, request_id, organisation, model, permitted, replica, region, reason";
const N_COLUMNS: usize = 10;

pub async fn append(store: &SqlStore, lines: &[AuditLine]) -> Result<(), StoreError> {
    let mut transaction = store.transaction().await?;
    for some in lines.chunks(ROWS_PER_STATEMENT) {
        let sql = format!(
            "INSERT INTO residency_audit ({COLUMNS}) VALUES {} ON CONFLICT (id) DO NOTHING",
            store.dialect.places(some.len(), N_COLUMNS)
        );
        // The SQL contains only parameter numbers.
        let mut statement = sqlx::query(AssertSqlSafe(sql));
        for line in some {
            statement = statement
                .bind(short_text(&line.id))
                .bind(as_i64(line.at_unix_ms))
                .bind(line.event.name())
                .bind(short_text(&line.request_id))
                .bind(short_text(&line.organisation))
                .bind(short_text(&line.model))
                .bind(short_text(&line.permitted))
                .bind(short_text(&line.replica))
                .bind(short_text(&line.region))
                .bind(short_text(&line.reason));
        }
        statement.execute(&mut *transaction).await.map_err(of_entry)?;
    }
    transaction.commit().await
}

pub async fn read(pool: &AnyPool, query: &AuditQuery) -> Result<Vec<(u64, AuditLine)>, StoreError> {
    let limit = query.limit.min(MAX_AUDIT_LINES);
    let of_organisation = if query.organisation.is_some() { "AND organisation = $4" } else { "" };
    // The SQL contains only constant text.
    let sql = format!(
        "SELECT number, {COLUMNS} FROM residency_audit WHERE number > $1 AND at_unix_ms >= $2 AND at_unix_ms < $3
         {of_organisation} ORDER BY number LIMIT {limit}"
    );
    let bounds = [query.after, query.start_unix_ms, query.end_unix_ms];
    let mut statement = sqlx::query(AssertSqlSafe(sql));
    for bound in bounds {
        statement = statement.bind(as_i64(bound));
    }
    if let Some(organisation) = &query.organisation {
        statement = statement.bind(short_text(organisation));
    }
    let rows = statement.fetch_all(pool).await?;
    rows.iter().map(line).collect()
}

fn line(row: &AnyRow) -> Result<(u64, AuditLine), StoreError> {
    let damaged = |what: &str| StoreError::Damaged(format!("{what} in the audit"));
    let unsigned = |column: usize| -> Result<u64, StoreError> {
        u64::try_from(row.try_get::<i64, _>(column)?).map_err(|_| damaged("a negative number"))
    };
    let event: String = row.try_get(3)?;
    let event = AuditEvent::ALL.into_iter().find(|known| known.name() == event);
    let line = AuditLine {
        id: row.try_get(1)?,
        at_unix_ms: unsigned(2)?,
        event: event.ok_or_else(|| damaged("an unknown event"))?,
        request_id: row.try_get(4)?,
        organisation: row.try_get(5)?,
        model: row.try_get(6)?,
        permitted: row.try_get(7)?,
        replica: row.try_get(8)?,
        region: row.try_get(9)?,
        reason: row.try_get(10)?,
    };
    Ok((unsigned(0)?, line))
}
