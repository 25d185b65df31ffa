//! A request for a model of foreign engines, from its body to its answer. Does not know HTTP connections to engines.

use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use serde::Deserialize;
use serde_json::Value;
use throng_http::Phase;
use throng_http::body::HeldBody;
use tokio::time::Instant;

use super::attempt::{Answering, Told, begin};
use super::model::ForeignModel;
use super::request::{Endpoint, ForeignRequest, named_model};
use super::running::Running;
use super::setting::Setting;
use super::stream::{Stream, respond};
use super::usage::{ReportedUsage, UsageCount, estimated_tokens};
use crate::caller::Caller;
use crate::generation::on_blocking_thread;
use crate::ledger::{Counted, Ledger};
use crate::limits::{Charge, budget_scopes, limit_error, refusal_name, uncounted_error, uncounted_name};
use crate::regions::{Forwarding, check_regions};
use crate::rejection::{memory_full, reject};
use crate::retry_after::retry_after_s;
use throng_api::ApiError;

/// The body that was sent, and the one that is sent on.
const COPIES: usize = 2;

/// Answers a request for the model.
///
/// # Errors
/// 403 for a model that the key, or regions that the organisation does not permit, 400 for what cannot be read, 429 for what the key may not
/// use now, 508 for what came through too many gateways, and 502, 503 and 504 where no engine answers.
pub(crate) async fn answer(
    setting: &Setting<'_>,
    model: Arc<ForeignModel>,
    endpoint: Endpoint,
    body: HeldBody,
    caller: Arc<Caller>,
) -> Result<Response, ApiError> {
    let n_bytes = body.bytes.len();
    let (request, memory, name) = on_blocking_thread(setting.turns, &caller, n_bytes, move |_| {
        let HeldBody { bytes, mut memory } = body;
        memory.cover(bytes.len().saturating_mul(COPIES)).map_err(memory_full)?;
        let name = named_model(&bytes).unwrap_or_default().into_owned();
        Ok((ForeignRequest::read(endpoint, &bytes)?, memory, name))
    })
    .await?;
    let name = if name.is_empty() { model.id().to_owned() } else { name };
    if !caller.key_holder().permits_name_of(&name, &model.names) {
        return Err(ApiError::permission_denied());
    }
    let bound = check_regions((&*model.dispatcher, true), &model.metrics, &caller, setting.ledger)?;
    let regions = bound.as_deref().map(|bound| &*bound.regions);
    let forwarding = Forwarding::of(&caller.destination)?.bound_to(regions);
    caller.set_user(request.user.as_deref());
    let charge = charge(setting, &model, &request, &name, &caller).await?;
    model.metrics.admitted(request.n_prompt_tokens as usize, request.n as u32, request.max_tokens as u32);
    let began = Instant::now();
    let max_bytes = setting.config.api.max_answer_bytes;
    let mut phase = setting.phase.subscribe();
    let begun = tokio::select! {
        begun = begin(&model, endpoint, &request, &caller, (bound.as_deref(), &forwarding), max_bytes) => begun?,
        _ = phase.wait_for(|phase| *phase == Phase::Cut) => return Err(ApiError::shutting_down(retry_after_s())),
    };
    let Answering { told, placement, replica } = begun;
    let running = |charge| {
        let count = UsageCount::new(charge, request.usage_bounds());
        Running::new(caller.clone(), model.clone(), placement, count, request.n, began)
    };
    match told {
        Told::Rejected(status, body) => {
            model.metrics.rejected("upstream_rejected");
            Ok(rejected(status, body))
        }
        Told::Whole(bytes) if endpoint.generates() => Ok(whole(running(charge), bytes)),
        Told::Whole(bytes) => Ok(vectors(running(charge), bytes, request.n_prompt_tokens)),
        Told::Stream { first, splitter, body } => {
            let (wants_usage, timeout) = (request.wants_usage, replica.upstream.timeout);
            let running = running(charge);
            drop((request, memory));
            Ok(respond(setting, Stream { running, wants_usage, first, splitter, body, timeout }))
        }
    }
}

/// Charges with the most that the prompt has by its bytes, and all that may be generated.
async fn charge(
    setting: &Setting<'_>,
    model: &ForeignModel,
    request: &ForeignRequest,
    name: &str,
    caller: &Caller,
) -> Result<Charge, ApiError> {
    let tenant = caller.key_holder();
    let generated_tokens = request.n.saturating_mul(request.max_tokens);
    let n_tokens = request.most_prompt_tokens().saturating_add(generated_tokens);
    let charged = setting.limits.charge(&tenant, caller.user(), n_tokens).await;
    caller.set_limits(charged.status);
    let charge = charged.charge.map_err(|refusal| {
        model.metrics.rejected(refusal_name(&refusal));
        limit_error(&refusal)
    })?;
    let counted = Counted {
        tenant: &tenant.id.0,
        key: tenant.key.as_deref(),
        scopes: &budget_scopes(&tenant),
        request_id: caller.id_text(),
        user: caller.user().unwrap_or_default(),
        models: [name, model.id()],
        prompt_tokens: request.most_prompt_tokens(),
        generated_tokens,
    };
    let begin = |ledger: &Arc<Ledger>| {
        ledger.begin(&counted).map_err(|refusal| {
            model.metrics.rejected(uncounted_name(refusal));
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

fn whole(mut running: Running, bytes: Bytes) -> Response {
    let WholeAnswer { usage, choices } = serde_json::from_slice(&bytes).unwrap_or_default();
    let at_length = choices.iter().any(|choice| choice.finish_reason == "length");
    let n_tokens = |choice: &WholeChoice| estimated_tokens(&choice.message) + estimated_tokens(&choice.text);
    running.whole(bytes.len(), choices.iter().map(n_tokens).sum(), usage, at_length);
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
fn vectors(mut running: Running, bytes: Bytes, n_assumed: u64) -> Response {
    let read: PooledAnswer = serde_json::from_slice(&bytes).unwrap_or_default();
    let told = read.usage.and_then(|usage| usage.prompt_tokens.or(usage.total_tokens));
    let prompt_tokens = told.filter(|n| *n > 0).or(Some(n_assumed));
    let usage = ReportedUsage { prompt_tokens, completion_tokens: Some(0), ..ReportedUsage::default() };
    running.whole(bytes.len(), 0, Some(usage), false);
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
