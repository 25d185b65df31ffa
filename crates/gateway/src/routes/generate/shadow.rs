//! Copies of requests, whose answers nobody gets: a share of an alias's requests goes to another model too. A
//! copy belongs to no client: it is not charged, waits behind all others, and is not made where too many run.
//! Does not know what is asked.

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

/// Whose requests copies are.
const TENANT: &str = "throng shadow";
/// A copy that takes longer is given up.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Copies this request, if it is one of those that are to be copied and there is room. A copy belongs to no
/// organisation, so that requests that a residency rule or a header binds to regions are not copied, nor
/// those that another gateway may have copied.
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

/// The least urgent of all, and not from a cache nor for it.
fn headers() -> HeaderMap {
    let batch = ("x-service-class".parse(), HeaderValue::from_static("batch"));
    let fields = [batch, (Ok(header::CACHE_CONTROL), HeaderValue::from_static("no-store"))];
    fields.into_iter().filter_map(|(name, value)| Some((name.ok()?, value))).collect()
}

/// Reads an answer to its end; whether it was one.
async fn discard(answer: impl Future<Output = Result<Response, ApiError>>) -> Result<bool, axum::Error> {
    let Ok(answer) = answer.await else { return Ok(false) };
    let is_answer = answer.status().is_success();
    let mut body = answer.into_body();
    while let Some(frame) = std::future::poll_fn(|cx| std::pin::Pin::new(&mut body).poll_frame(cx)).await {
        frame?;
    }
    Ok(is_answer)
}
