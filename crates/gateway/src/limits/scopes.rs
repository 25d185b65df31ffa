//! Scopes of a request's limits and budgets: its key, user, project and organisation. Does not know usage.

use std::sync::Arc;

use throng_core::fleet::limits::{Budget, BudgetScope, Budgets, Limits, Scope};
use throng_store::{Cost, LimitKind, Limits as StoredLimits};

use throng_auth::Tenant;

/// Scopes limited by the minute and at a time; none without limits.
pub(super) fn scopes(tenant: &Tenant, user: Option<&str>) -> Vec<Scope> {
    let Some(key) = tenant.key.as_deref() else { return Vec::new() };
    let user = user.map(|user| (format!("{}/{user}", key.project_id), &key.user_limits));
    let of = |name: &str, stored: &StoredLimits| {
        let limits = Limits {
            requests_per_minute: stored.get(LimitKind::RequestsPerMinute),
            tokens_per_minute: stored.get(LimitKind::TokensPerMinute),
            concurrent_requests: stored.get(LimitKind::ConcurrentRequests),
        };
        (!limits.is_empty()).then(|| Scope { name: Arc::from(name), limits })
    };
    let user = user.and_then(|(name, limits)| of(&name, limits));
    [
        of(&key.id, &key.limits),
        of(&key.project_id, &key.project_limits),
        of(&key.organisation_id, &key.organisation_limits),
        user,
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Scopes of budgets: all of them, also without budgets, since one may be set later.
pub(crate) fn budget_scopes(tenant: &Tenant) -> Vec<BudgetScope> {
    let Some(key) = tenant.key.as_deref() else { return Vec::new() };
    let of = |name: &str, stored: &StoredLimits| {
        let cost = |kind| stored.get(kind).map(|amount| Cost::from_microdollars(amount).0);
        let day = Budget { tokens: stored.get(LimitKind::TokensPerDay), cost: cost(LimitKind::CostPerDay) };
        let month =
            Budget { tokens: stored.get(LimitKind::TokensPerMonth), cost: cost(LimitKind::CostPerMonth) };
        BudgetScope { name: Arc::from(name), budgets: Budgets { day, month } }
    };
    vec![
        of(&key.id, &key.limits),
        of(&key.project_id, &key.project_limits),
        of(&key.organisation_id, &key.organisation_limits),
    ]
}
