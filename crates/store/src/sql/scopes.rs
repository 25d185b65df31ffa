//! Changes limits of organisations, projects and their users, by name.

use super::limits::{change_limits, each_user_of, of_scopes};
use super::{SqlStore, keys};
use crate::error::StoreError;
use crate::limits::{LimitChange, LimitScope, Limits};

const OF_ORGANISATION: &str = "UPDATE api_keys SET revision = $1 WHERE project_id IN
     (SELECT id FROM projects WHERE organisation_id = $2)";
const OF_PROJECT: &str = "UPDATE api_keys SET revision = $1 WHERE project_id = $2";

/// Changes the limits of an organisation, a project or its users, which must exist.
pub async fn change_scope(
    store: &SqlStore,
    scope: &LimitScope,
    change: LimitChange,
) -> Result<Limits, StoreError> {
    let mut transaction = store.transaction().await?;
    let revision = keys::raise_revision(&mut transaction).await?;
    let (scope, of_scope, id) = match scope {
        LimitScope::Organisation(name) => {
            let id = keys::organisation_id(&mut transaction, name).await?;
            (id.clone(), OF_ORGANISATION, id)
        }
        LimitScope::Project { organisation, project } => {
            let id = keys::project_id(&mut transaction, organisation, project).await?;
            (id.clone(), OF_PROJECT, id)
        }
        LimitScope::EachUser { organisation, project } => {
            let id = keys::project_id(&mut transaction, organisation, project).await?;
            (each_user_of(&id), OF_PROJECT, id)
        }
    };
    change_limits(&mut transaction, &scope, &change).await?;
    // Marks the keys as changed, so that servers read them again.
    sqlx::query(of_scope).bind(revision).bind(id).execute(&mut *transaction).await?;
    let scopes = [scope.clone(), String::new(), String::new(), String::new()];
    let limits = of_scopes(&mut transaction, &scopes).await?.remove(&scope).unwrap_or_default();
    transaction.commit().await?;
    Ok(limits)
}
