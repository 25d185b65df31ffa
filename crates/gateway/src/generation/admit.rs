//! From prepared requests to a running session, or to the reason why not. Refuses to know how answers are shown.

use std::sync::Arc;

use throng_core::admission::Refusal;
use throng_engine::{EngineFailure, SubmitError};

use super::prepare::Prepared;
use super::session::Session;
use crate::openai::ApiError;
use crate::replica::ReplicaError;
use crate::router::Route;

/// Clients that come back all at once would find the queue full again: they are told to wait 1 to this many
/// seconds.
const MAX_RETRY_AFTER_S: u32 = 4;

/// Hands all requests to the model's replica. Either all are taken in or none; `prompt_param` is where the prompt
/// stood.
///
/// # Errors
/// 400 for what can never run, 503 for what cannot run at present.
pub(crate) fn admit(route: &Route, prepared: Prepared, prompt_param: &str) -> Result<Session, ApiError> {
    let Prepared { requests, text, memory, .. } = prepared;
    let metrics = &route.model.metrics;
    let n = requests.first().map_or(1, |request| request.n);
    let mut generations = Vec::with_capacity(requests.len());
    for request in requests {
        let sampling = Arc::clone(&request.sampling);
        let n_prompt_tokens = request.prompt.len();
        let generation = route.replica.generate(request).map_err(|error| {
            metrics.rejected(rejection_name(&error));
            refusal(&error, prompt_param, route)
        })?;
        metrics.admitted(n_prompt_tokens, n, sampling.max_tokens);
        generations.push((generation, sampling));
    }
    Ok(Session::new(route.model.clone(), generations, n, text.as_ref(), memory))
}

/// Refuses a request that the replica would refuse now whatever its prompt is, before any work is spent on it.
///
/// # Errors
/// 503.
pub(crate) fn check_room(route: &Route) -> Result<(), ApiError> {
    route.replica.check_room().map_err(|error| {
        route.model.metrics.rejected(rejection_name(&error));
        refusal(&error, "", route)
    })
}

fn rejection_name(error: &ReplicaError) -> &'static str {
    match error.source {
        SubmitError::Refused(refusal) => match refusal {
            Refusal::Empty | Refusal::InvalidToken { .. } => "invalid",
            Refusal::TooLong { .. } => "too_long",
            Refusal::NeverFits { .. } => "never_fits",
            Refusal::QueueFull { .. } => "queue_full",
        },
        SubmitError::Draining => "draining",
        SubmitError::Unhealthy => "unhealthy",
    }
}

fn refusal(error: &ReplicaError, param: &str, route: &Route) -> ApiError {
    let vocabulary_size = route.model.limits().vocabulary_size;
    match error.source {
        SubmitError::Refused(refusal) => match refusal {
            Refusal::Empty => ApiError::empty_array(param),
            Refusal::InvalidToken { .. } => ApiError::invalid_token(param, Some(vocabulary_size)),
            Refusal::TooLong { n_tokens, limit } => {
                ApiError::prompt_too_long(param, n_tokens, u32::try_from(limit).unwrap_or(u32::MAX))
            }
            Refusal::NeverFits { needed_blocks, n_blocks } => {
                ApiError::prompt_exceeds_capacity(param, needed_blocks as u64, n_blocks as u64)
            }
            Refusal::QueueFull { .. } => ApiError::overloaded("The server's queue is full.", retry_after_s()),
        },
        SubmitError::Draining => ApiError::shutting_down(retry_after_s()),
        SubmitError::Unhealthy => ApiError::no_healthy_worker(retry_after_s()),
    }
}

/// What a client is told of a failure on the way.
pub(crate) fn failure(error: &EngineFailure, request_id: &str) -> ApiError {
    tracing::warn!(request = request_id, %error, "a request failed");
    match error {
        EngineFailure::Stopped => ApiError::shutting_down(retry_after_s()),
        EngineFailure::Unhealthy => ApiError::no_healthy_worker(retry_after_s()),
        _ => ApiError::internal_error(request_id),
    }
}

/// Seconds after which a refused client may try again.
pub(crate) fn retry_after_s() -> u32 {
    fastrand::u32(1..=MAX_RETRY_AFTER_S)
}
