//! Objects that tenants keep between requests, within the configured bounds. Does not know how objects are
//! stored.

mod principal;

use throng_api::ApiError;
use throng_state::{StateError, TenantState};

pub(crate) use self::principal::{principal_of, tenant_of};
use crate::app::App;
use crate::caller::Caller;
use throng_http::retry_after::retry_after_s;

/// Object store of the caller.
///
/// # Errors
/// 404 without a database.
pub(crate) fn state_of(app: &App, caller: &Caller) -> Result<TenantState, ApiError> {
    let store = app.policy.ledger.as_ref().and_then(|ledger| ledger.store());
    let store = store.ok_or_else(ApiError::nothing_kept)?;
    let (key_holder, config) = (caller.key_holder(), &app.config.state);
    let state = TenantState::new(store.clone(), key_holder.id.0.clone(), config.quota());
    Ok(state.keeping_for(config.retention_s(key_holder.key.as_deref())))
}

/// Error for the client; internal failures are logged.
pub(crate) fn state_error(error: StateError) -> ApiError {
    if let StateError::Store(_) | StateError::Unreadable(_) = &error {
        tracing::warn!(%error, "what is kept cannot be read or changed");
    }
    error.to_api(retry_after_s())
}
