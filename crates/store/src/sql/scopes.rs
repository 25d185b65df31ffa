//! The limits of organisations, projects and their users, changed by the names of both.

use super::limits::{all, change_limits, each_user_of};
use super::{SqlStore, keys};
use crate::error::StoreError;
use crate::limits::{LimitChange, LimitScope, Limits};

/// Changes the limits of an organisation, a project or its users, which must be there.
pub async fn change_scope(
    store: &SqlStore,
    scope: &LimitScope,
    change: LimitChange,
) -> Result<Limits, StoreError> {
    let mut transaction = store.transaction().await?;
    keys::raise_revision(&mut transaction).await?;
    let scope = match scope {
        LimitScope::Organisation(name) => keys::organisation_id(&mut transaction, name).await?,
        LimitScope::Project { organisation, project } => {
            keys::project_id(&mut transaction, organisation, project).await?
        }
        LimitScope::EachUser { organisation, project } => {
            each_user_of(&keys::project_id(&mut transaction, organisation, project).await?)
        }
    };
    change_limits(&mut transaction, &scope, &change).await?;
    let limits = all(&mut transaction).await?.remove(&scope).unwrap_or_default();
    transaction.commit().await?;
    Ok(limits)
}
