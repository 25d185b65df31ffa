//! Start of a request for a model of upstream engines: permission, regions, limits and ledger, then one
//! engine after the other. Does not know the form of answers.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use throng_api::ApiError;
use throng_fleet::upstream::{
    AnsweringEngine, Endpoint, Fault, Submission, Unanswered, UpstreamAnswer, UpstreamModel, UpstreamRequest,
    UpstreamStream, UsageCount, rejection_reason, submit,
};
use throng_http::Phase;
use tokio::time::Instant;

use super::active_request::{ActiveRequest, StartedUpstream};
use super::setting::Setting;
use crate::caller::Caller;
use crate::generation::unavailable;
use crate::limits::{Charge, budget_scopes, limit_error, refusal_name, uncounted_error, uncounted_name};
use crate::regions::{check_regions, forwarding};
use throng_http::retry_after::retry_after_s;
use throng_metering::ledger::{Counted, Ledger};
use throng_metering::metrics::ModelMetrics;

/// A parsed request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UpstreamJob<'a> {
    /// Model of the request.
    pub model: &'a UpstreamModel,
    /// Endpoint of the engines.
    pub endpoint: Endpoint,
    /// Body for the engines.
    pub request: &'a UpstreamRequest,
    /// Name of the model in the request.
    pub name: &'a str,
    /// Whether a limit of its output that exceeds the rest of the context is reduced to that rest.
    pub may_end_with_context: bool,
}

/// The beginning of an answer.
#[derive(Debug)]
pub(super) enum Begun {
    /// The complete answer.
    Whole(ActiveRequest, Bytes),
    /// A stream whose first event was received.
    Stream(ActiveRequest, UpstreamStream),
    /// Rejection of the request by an engine, with status and body in OpenAI's form; the body may be empty.
    Rejected(StatusCode, Bytes),
}

/// Charges a request and submits it to the engines of its model until one answers.
///
/// # Errors
/// 403 for a model or regions that are not permitted, 429 beyond the key's limits, 508 after too many
/// gateways, and 502, 503 and 504 when no engine answers.
pub(super) async fn begin(
    setting: &Setting<'_>,
    job: &UpstreamJob<'_>,
    caller: &Arc<Caller>,
) -> Result<Begun, ApiError> {
    let UpstreamJob { model, request, .. } = *job;
    if !caller.key_holder().permits(job.name, &model.names) {
        return Err(ApiError::permission_denied());
    }
    let metrics = setting.metrics.of_upstream(model.id());
    let bound = check_regions((&*model.dispatcher, true), &metrics, caller, setting.ledger)?;
    let regions = bound.as_deref().map(|bound| bound.regions());
    let forwarding = &forwarding(&caller.destination, regions)?;
    caller.set_user(request.user.as_deref());
    let charge = charge(setting, &metrics, job, caller).await?;
    metrics.admitted(request.n_prompt_tokens as usize, request.n as u32, request.max_tokens as u32);
    let began = Instant::now();
    let tenant = caller.tenant();
    let submission = Submission {
        model,
        endpoint: job.endpoint,
        request,
        request_id: caller.id_text(),
        tenant: &tenant,
        pinned: caller.destination.replica(),
        bound: bound.as_deref(),
        forwarding,
        max_answer_bytes: setting.config.api.max_answer_bytes,
    };
    let (mut phase, header) = (setting.phase.subscribe(), caller.destination.replica_header());
    let begun = tokio::select! {
        begun = submit_within(submission, job) => begun.map_err(|failure| unanswered(&failure, &metrics, header))?,
        _ = phase.wait_for(|phase| *phase == Phase::Cut) => return Err(ApiError::shutting_down(retry_after_s())),
    };
    let AnsweringEngine { answer, placement } = begun;
    let active = || {
        let (model_id, count) = (Box::from(model.id()), UsageCount::new(request.usage_bounds()));
        let caller = caller.clone();
        let started =
            StartedUpstream { caller, metrics: metrics.clone(), model_id, placement, charge, count, began };
        ActiveRequest::new(started, request.n)
    };
    Ok(match answer {
        UpstreamAnswer::Rejected(status, body) => {
            metrics.rejected("upstream_rejected");
            Begun::Rejected(status, body)
        }
        UpstreamAnswer::Whole(bytes) => Begun::Whole(active(), bytes),
        UpstreamAnswer::Stream(events) => Begun::Stream(active(), events),
    })
}

/// Submits a request. If its output may end with the context and does not fit, submits it again without its
/// limit, so that the engine ends it at the end of the context.
async fn submit_within(
    submission: Submission<'_>,
    job: &UpstreamJob<'_>,
) -> Result<AnsweringEngine, Unanswered> {
    let begun = submit(submission).await?;
    let UpstreamAnswer::Rejected(_, body) = &begun.answer else { return Ok(begun) };
    let is_too_long =
        job.may_end_with_context && rejection_reason(body).is_some_and(|reason| reason.is_too_long);
    match job.request.without_output_bound().filter(|_| is_too_long) {
        Some(request) => submit(Submission { request: &request, ..submission }).await,
        None => Ok(begun),
    }
}

/// Error for a rejection, for clients that do not get its body.
pub(super) fn rejection_error(status: StatusCode, body: &[u8]) -> ApiError {
    match rejection_reason(body) {
        Some(reason) => ApiError::rejected_by_engine(status, reason.message, reason.is_too_long),
        None => ApiError::upstream_rejected(),
    }
}

/// Error for a client when no engine has answered.
fn unanswered(failure: &Unanswered, metrics: &ModelMetrics, replica_header: Option<&str>) -> ApiError {
    metrics.rejected(failure.name());
    match failure {
        Unanswered::Unsupported(words) => ApiError::unsupported_by_engine(words),
        Unanswered::NoEngine | Unanswered::Failed(Fault::Unreachable(_) | Fault::Broken(_)) => {
            unavailable(replica_header)
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

/// Charges the maximum number of prompt tokens by its bytes, and of generated tokens.
async fn charge(
    setting: &Setting<'_>,
    metrics: &ModelMetrics,
    job: &UpstreamJob<'_>,
    caller: &Caller,
) -> Result<Charge, ApiError> {
    let (request, tenant) = (job.request, caller.key_holder());
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
        models: [job.name, job.model.id()],
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
