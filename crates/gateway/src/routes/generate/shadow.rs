//! Shadow copies: a share of an alias's requests is also sent to another model, whose answers are
//! discarded. A copy belongs to no client: it is not charged, waits behind all other requests, and is not
//! made if too many run. Does not know the content of requests.

use std::sync::Arc;
use std::time::Duration;

use axum::body::HttpBody;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, header};

use super::super::json_body::JsonBody;
use super::{TextEndpoint, answer_as};
use crate::aliases::Alias;
use crate::app::App;
use crate::generate::Target;
use throng_api::ApiError;

/// Tenant of shadow requests.
const TENANT: &str = "throng shadow";
/// Longest time for a copy.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Copies this request, if it is chosen and there is room. A copy belongs to no organisation, so requests
/// that are bound to regions are not copied, nor those that another gateway may have copied.
pub(super) fn copy(app: &Arc<App>, alias: &Arc<Alias>, body: &JsonBody, endpoint: TextEndpoint) {
    let tenant = body.caller.key_holder();
    let has_rule = app.config.routing.binds(tenant.key.as_deref().map(|key| key.organisation.as_str()));
    if has_rule || body.caller.destination.is_bound_or_forwarded() {
        return;
    }
    let Some((shadow, permit)) = alias.copy() else { return };
    let model = shadow.model.clone();
    let body = permit.map(|permit| Some((permit, body.of_nobody(app, TENANT, &headers()).ok()?)));
    let Some((permit, body)) = body.flatten() else {
        alias.metrics.copied(&alias.config.name, &model, "dropped");
        return;
    };
    let (app, alias) = (app.clone(), alias.clone());
    tokio::spawn(async move {
        let answered = discard(answer_as(app, body, endpoint, Target::Last(model.clone())));
        let outcome = match tokio::time::timeout(TIMEOUT, answered).await {
            Ok(Ok(true)) => "answered",
            Ok(Ok(false) | Err(_)) | Err(_) => "failed",
        };
        alias.metrics.copied(&alias.config.name, &model, outcome);
        drop(permit);
    });
}

/// Headers of a copy: the lowest urgency, and no use of caches.
fn headers() -> HeaderMap {
    let batch = ("x-service-class".parse(), HeaderValue::from_static("batch"));
    let fields = [batch, (Ok(header::CACHE_CONTROL), HeaderValue::from_static("no-store"))];
    fields.into_iter().filter_map(|(name, value)| Some((name.ok()?, value))).collect()
}

/// Reads an answer to its end; returns whether it was successful.
async fn discard(answer: impl Future<Output = Result<Response, ApiError>>) -> Result<bool, axum::Error> {
    let Ok(answer) = answer.await else { return Ok(false) };
    let is_answer = answer.status().is_success();
    let mut body = answer.into_body();
    while let Some(frame) = std::future::poll_fn(|cx| std::pin::Pin::new(&mut body).poll_frame(cx)).await {
        frame?;
    }
    Ok(is_answer)
}
