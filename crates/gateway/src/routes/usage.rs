//! Usage and costs from the ledger, for their tenants and the operator.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, header};
use throng_store::{StoreError, UsageGroup, now_unix_s};

use crate::app::App;
use crate::caller::Caller;
use crate::rejection::Rejection;
use throng_api::ApiError;
use throng_auth::Tenant;
use throng_http::retry_after::retry_after_s;
use throng_metering::usage_report::{self, UsageKind, UsageQuestion};

/// Longest time for an answer of the database.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// `GET /v1/organization/usage/completions`.
pub(super) async fn completions(
    state: State<Arc<App>>,
    caller: Extension<Arc<Caller>>,
    query: RawQuery,
    headers: HeaderMap,
) -> Result<Response, Rejection> {
    answer(UsageKind::Completions, &state, &caller, query, &headers).await.map_err(Rejection::from)
}

/// `GET /v1/organization/costs`.
pub(super) async fn costs(
    state: State<Arc<App>>,
    caller: Extension<Arc<Caller>>,
    query: RawQuery,
    headers: HeaderMap,
) -> Result<Response, Rejection> {
    answer(UsageKind::Costs, &state, &caller, query, &headers).await.map_err(Rejection::from)
}

async fn answer(
    kind: UsageKind,
    app: &App,
    caller: &Caller,
    RawQuery(query): RawQuery,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let store =
        app.policy.ledger.as_deref().and_then(|ledger| ledger.store()).ok_or_else(ApiError::no_ledger)?;
    let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let accepts_csv = accepts.trim_start().starts_with("text/csv");
    let now = now_unix_s();
    let mut question = UsageQuestion::parse(kind, query.as_deref().unwrap_or_default(), accepts_csv, now)?;
    question.query.only.extend(visible_to(&caller.key_holder()));
    let rows = match tokio::time::timeout(ANSWER_LIMIT, store.usage(&question.query)).await {
        Ok(Ok(rows)) => rows,
        Ok(Err(StoreError::TooManyRows(_))) => {
            let reason = "The answer has too many rows: ask for less time or fewer groups.";
            return Err(ApiError::invalid_value("group_by", reason));
        }
        failed => {
            let reason = failed.map_or_else(
                |_| "no answer".to_owned(),
                |ended| ended.err().map(|error| error.to_string()).unwrap_or_default(),
            );
            tracing::warn!(request = caller.id_text(), reason, "the ledger cannot be read");
            return Err(ApiError::overloaded("The database does not answer.", retry_after_s()));
        }
    };
    if question.is_csv {
        let fields = [(header::CONTENT_TYPE, "text/csv; charset=utf-8"), (header::VARY, "accept")];
        return Ok((fields, usage_report::csv(&question, &rows)).into_response());
    }
    let fields = [(header::CONTENT_TYPE, "application/json"), (header::VARY, "accept")];
    Ok((fields, usage_report::json(kind, &question, &rows)).into_response())
}

/// Part of the ledger that is shown: everything to the operator, the project's usage to a stored key, the
/// key's own usage to a key of the configuration.
fn visible_to(tenant: &Tenant) -> Option<(UsageGroup, Vec<String>)> {
    match tenant.key.as_deref() {
        _ if tenant.is_operator => None,
        Some(key) => Some((UsageGroup::Project, vec![key.project_id.clone()])),
        None => Some((UsageGroup::Key, vec![tenant.id.0.to_string()])),
    }
}
