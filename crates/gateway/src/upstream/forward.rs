//! A request for a model of upstream engines, from its body to its answer. Does not know connections to
//! engines.

use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use serde::Deserialize;
use serde_json::Value;
use throng_fleet::upstream::{
    AnsweringEngine, Endpoint, Fault, ReportedUsage, Submission, Unanswered, UpstreamAnswer, UpstreamModel,
    UpstreamRequest, UsageCount, estimated_tokens, named_model, submit,
};
use throng_http::Phase;
use throng_http::body::HeldBody;
use tokio::time::Instant;

use super::active_request::{ActiveRequest, StartedUpstream};
use super::setting::Setting;
use super::stream::{Stream, respond};
use crate::caller::Caller;
use crate::generation::on_blocking_thread;
use crate::ledger::{Counted, Ledger};
use crate::limits::{Charge, budget_scopes, limit_error, refusal_name, uncounted_error, uncounted_name};
use crate::metrics::ModelMetrics;
use crate::regions::{check_regions, forwarding};
use crate::rejection::{memory_full, reject};
use crate::retry_after::retry_after_s;
use throng_api::ApiError;

/// The body that was sent, and the one that is sent on.
const COPIES: usize = 2;

/// Answers a request for the model.
///
/// # Errors
/// 403 for a model that the key, or regions that the organisation does not permit, 400 for what cannot be
/// read, 429 for what the key may not use now, 508 for what came through too many gateways, and 502, 503 and
/// 504 where no engine answers.
pub(crate) async fn answer(
    setting: &Setting<'_>,
    model: &UpstreamModel,
    endpoint: Endpoint,
    body: HeldBody,
    caller: Arc<Caller>,
) -> Result<Response, ApiError> {
    let n_bytes = body.bytes.len();
    let (request, memory, name) = on_blocking_thread(setting.turns, &caller, n_bytes, move |_| {
        let HeldBody { bytes, mut memory } = body;
        memory.cover(bytes.len().saturating_mul(COPIES)).map_err(memory_full)?;
        let name = named_model(&bytes).unwrap_or_default().into_owned();
        Ok((UpstreamRequest::read(endpoint, &bytes)?, memory, name))
    })
    .await?;
    let name = if name.is_empty() { model.id().to_owned() } else { name };
    if !caller.key_holder().permits_name_of(&name, &model.names) {
        return Err(ApiError::permission_denied());
    }
    let metrics = setting.metrics.of_upstream(model.id());
    let bound = check_regions((&*model.dispatcher, true), &metrics, &caller, setting.ledger)?;
    let regions = bound.as_deref().map(|bound| bound.regions());
    let forwarding = &forwarding(&caller.destination, regions)?;
    caller.set_user(request.user.as_deref());
    let charge = charge(setting, (model.id(), &metrics), &request, &name, &caller).await?;
    metrics.admitted(request.n_prompt_tokens as usize, request.n as u32, request.max_tokens as u32);
    let began = Instant::now();
    let submission = Submission {
        model,
        endpoint,
        request: &request,
        request_id: caller.id_text(),
        tenant: &caller.tenant(),
        pinned: caller.destination.replica(),
        bound: bound.as_deref(),
        forwarding,
        max_answer_bytes: setting.config.api.max_answer_bytes,
    };
    let mut phase = setting.phase.subscribe();
    let begun = tokio::select! {
        begun = submit(submission) => begun.map_err(|failure| unanswered(&failure, &metrics))?,
        _ = phase.wait_for(|phase| *phase == Phase::Cut) => return Err(ApiError::shutting_down(retry_after_s())),
    };
    let AnsweringEngine { answer, placement, replica } = begun;
    let active = |charge| {
        let (model_id, count) = (Box::from(model.id()), UsageCount::new(request.usage_bounds()));
        let (caller, metrics) = (caller.clone(), metrics.clone());
        ActiveRequest::new(
            StartedUpstream { caller, metrics, model_id, placement, charge, count, began },
            request.n,
        )
    };
    match answer {
        UpstreamAnswer::Rejected(status, body) => {
            metrics.rejected("upstream_rejected");
            Ok(rejected(status, body))
        }
        UpstreamAnswer::Whole(bytes) if endpoint.generates() => Ok(whole(active(charge), bytes)),
        UpstreamAnswer::Whole(bytes) => Ok(vectors(active(charge), bytes, request.n_prompt_tokens)),
        UpstreamAnswer::Stream { first, splitter, body } => {
            let (wants_usage, timeout) = (request.wants_usage, replica.upstream.timeout);
            let active = active(charge);
            drop((request, memory));
            Ok(respond(setting, Stream { active, wants_usage, first, splitter, body, timeout }))
        }
    }
}

/// The error for a client whom no engine has answered.
fn unanswered(failure: &Unanswered, metrics: &ModelMetrics) -> ApiError {
    metrics.rejected(failure.name());
    match failure {
        Unanswered::Unsupported(words) => ApiError::unsupported_by_engine(words),
        Unanswered::NoEngine | Unanswered::Failed(Fault::Unreachable(_) | Fault::Broken(_)) => {
            ApiError::no_healthy_worker(retry_after_s())
        }
        Unanswered::Failed(Fault::Busy(_)) => {
            ApiError::overloaded("The engines of this model are busy.", retry_after_s())
        }
        Unanswered::Failed(Fault::Silent) => ApiError::upstream_timeout(),
        Unanswered::Failed(Fault::Loop) => ApiError::too_many_hops(),
        Unanswered::Failed(Fault::OutOfRegion) => ApiError::region_not_permitted(),
        Unanswered::Failed(_) => ApiError::upstream_error(),
    }
}

/// Charges with the most that the prompt has by its bytes, and all that may be generated.
async fn charge(
    setting: &Setting<'_>,
    (model_id, metrics): (&str, &ModelMetrics),
    request: &UpstreamRequest,
    name: &str,
    caller: &Caller,
) -> Result<Charge, ApiError> {
    let tenant = caller.key_holder();
    let generated_tokens = request.n.saturating_mul(request.max_tokens);
    let n_tokens = request.most_prompt_tokens().saturating_add(generated_tokens);
    let charged = setting.limits.charge(&tenant, caller.user(), n_tokens).await;
    caller.set_limits(charged.status);
    let charge = charged.charge.map_err(|refusal| {
        metrics.rejected(refusal_name(&refusal));
        limit_error(&refusal)
    })?;
    let counted = Counted {
        tenant: &tenant.id.0,
        key: tenant.key.as_deref(),
        scopes: &budget_scopes(&tenant),
        request_id: caller.id_text(),
        user: caller.user().unwrap_or_default(),
        models: [name, model_id],
        prompt_tokens: request.most_prompt_tokens(),
        generated_tokens,
    };
    let begin = |ledger: &Arc<Ledger>| {
        ledger.begin(&counted).map_err(|refusal| {
            metrics.rejected(uncounted_name(refusal));
            uncounted_error(refusal, ledger)
        })
    };
    let meter = setting.ledger.map(begin).transpose()?;
    Ok(charge.with_meter(meter.flatten()))
}

#[derive(Default, Deserialize)]
struct WholeAnswer {
    usage: Option<ReportedUsage>,
    #[serde(default)]
    choices: Vec<WholeChoice>,
}

#[derive(Deserialize)]
struct WholeChoice {
    #[serde(default)]
    finish_reason: Value,
    #[serde(default)]
    message: Value,
    #[serde(default)]
    text: Value,
}

fn whole(mut active: ActiveRequest, bytes: Bytes) -> Response {
    let WholeAnswer { usage, choices } = serde_json::from_slice(&bytes).unwrap_or_default();
    let at_length = choices.iter().any(|choice| choice.finish_reason == "length");
    let n_tokens = |choice: &WholeChoice| estimated_tokens(&choice.message) + estimated_tokens(&choice.text);
    active.whole(bytes.len(), choices.iter().map(n_tokens).sum(), usage, at_length);
    json(StatusCode::OK, bytes)
}

#[derive(Default, Deserialize)]
struct PooledAnswer {
    usage: Option<PooledUsage>,
}

#[derive(Deserialize)]
struct PooledUsage {
    prompt_tokens: Option<u64>,
    total_tokens: Option<u64>,
}

/// An answer without a token of output: embeddings, scores, tokens of a text.
fn vectors(mut active: ActiveRequest, bytes: Bytes, n_assumed: u64) -> Response {
    let read: PooledAnswer = serde_json::from_slice(&bytes).unwrap_or_default();
    let told = read.usage.and_then(|usage| usage.prompt_tokens.or(usage.total_tokens));
    let prompt_tokens = told.filter(|n| *n > 0).or(Some(n_assumed));
    let usage = ReportedUsage { prompt_tokens, completion_tokens: Some(0), ..ReportedUsage::default() };
    active.whole(bytes.len(), 0, Some(usage), false);
    json(StatusCode::OK, bytes)
}

/// Answer to a request that the engine rejects, with its reason where it gives one.
fn rejected(status: StatusCode, reason: Bytes) -> Response {
    if reason.is_empty() { reject(ApiError::upstream_rejected()) } else { json(status, reason) }
}

fn json(status: StatusCode, body: Bytes) -> Response {
    let field = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    (status, [field], Body::from(body)).into_response()
}
