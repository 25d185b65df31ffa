//! Limits in SQL: one row for each scope and kind. A scope is the id of a key, a project or an
//! organisation, or `user:` followed by a project's id.

use std::collections::HashMap;

use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};

use crate::error::StoreError;
use crate::limits::{LimitKind, Limits};

/// The scope of each user of a project.
pub fn each_user_of(project_id: &str) -> String {
    format!("user:{project_id}")
}

/// The limits of all scopes of keys that have changed since a revision.
pub async fn of_changed(
    connection: &mut AnyConnection,
    since: i64,
) -> Result<HashMap<String, Limits>, StoreError> {
    let rows = sqlx::query(
        "SELECT scope, kind, value FROM limits WHERE scope IN (
            SELECT id FROM api_keys WHERE revision > $1
            UNION SELECT project_id FROM api_keys WHERE revision > $1
            UNION SELECT 'user:' || project_id FROM api_keys WHERE revision > $1
            UNION SELECT p.organisation_id FROM api_keys k JOIN projects p ON p.id = k.project_id WHERE k.revision > $1
         )",
    );
    by_scope(&rows.bind(since).fetch_all(connection).await?)
}

/// The limits of four scopes.
pub async fn of_scopes(
    connection: &mut AnyConnection,
    scopes: &[String; 4],
) -> Result<HashMap<String, Limits>, StoreError> {
    let mut query = sqlx::query("SELECT scope, kind, value FROM limits WHERE scope IN ($1, $2, $3, $4)");
    for scope in scopes {
        query = query.bind(scope.as_str());
    }
    by_scope(&query.fetch_all(connection).await?)
}

fn by_scope(rows: &[AnyRow]) -> Result<HashMap<String, Limits>, StoreError> {
    let mut all: HashMap<String, Limits> = HashMap::new();
    for row in rows {
        let (scope, kind, value): (String, String, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let value = u64::try_from(value).map_err(|_| StoreError::Damaged("a negative limit".to_owned()))?;
        // Limits of a kind from a newer version are ignored.
        if let Some(kind) = LimitKind::of_name(&kind) {
            all.entry(scope).or_default().set(kind, Some(value));
        }
    }
    Ok(all)
}

/// Changes the limits of a scope.
pub async fn change_limits(
    connection: &mut AnyConnection,
    scope: &str,
    change: &[(LimitKind, Option<u64>)],
) -> Result<(), StoreError> {
    for (kind, limit) in change {
        sqlx::query("DELETE FROM limits WHERE scope = $1 AND kind = $2")
            .bind(scope)
            .bind(kind.name())
            .execute(&mut *connection)
            .await?;
        if let Some(limit) = limit {
            let limit = i64::try_from(*limit)
                .map_err(|_| StoreError::Invalid { field: "a limit", expected: "below 2^63" })?;
            sqlx::query("INSERT INTO limits (scope, kind, value) VALUES ($1, $2, $3)")
                .bind(scope)
                .bind(kind.name())
                .bind(limit)
                .execute(&mut *connection)
                .await?;
        }
    }
    Ok(())
}
