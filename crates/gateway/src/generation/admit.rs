//! From prepared requests to a running session, or to the reason why not; the only place where a replica's error becomes
//! a client's. Does not know how answers are shown.

use std::sync::Arc;

use throng_core::admission::Refusal;

use super::prepare::Prepared;
use super::session::Session;
use crate::openai::ApiError;
use crate::replica::{ReplicaError, ReplicaErrorKind};
use crate::retry_after::retry_after_s;
use crate::router::Route;
use crate::served_model::ModelEntry;

/// Submits all requests to the model's replicas. Either all are taken in or none; `prompt_param` is where the prompt
/// stood.
///
/// # Errors
/// 400 for what can never run, 503 for what cannot run at present.
pub(crate) async fn admit(
    route: &Route,
    prepared: Prepared,
    prompt_param: &'static str,
    request_id: &str,
) -> Result<Session, ApiError> {
    let Prepared { requests, text, memory, .. } = prepared;
    let metrics = &route.model.metrics;
    let mut generations = Vec::with_capacity(requests.len());
    for request in requests {
        let (n, n_prompt_tokens) = (request.n_continuations(), request.prompt.len());
        let sampling = Arc::clone(&request.sampling);
        let generation = route.generate(request).await.map_err(|error| {
            metrics.rejected(error.kind.name());
            client_error(&error, prompt_param, &route.model, request_id)
        })?;
        metrics.admitted(n_prompt_tokens, n, sampling.max_tokens);
        generations.push((generation, n, sampling));
    }
    Ok(Session::new(route.model.clone(), generations, prompt_param, text.as_ref(), memory))
}

/// Refuses a request that all replicas would refuse now whatever its prompt is, before any work is spent on it.
///
/// # Errors
/// 503.
pub(crate) fn check_room(route: &Route, request_id: &str) -> Result<(), ApiError> {
    route.check_room().map_err(|error| {
        route.model.metrics.rejected(error.kind.name());
        client_error(&error, "", &route.model, request_id)
    })
}

/// What a client is told of a replica's error. `prompt_param` is where the prompt stood.
pub(super) fn client_error(
    error: &ReplicaError,
    prompt_param: &str,
    model: &ModelEntry,
    request_id: &str,
) -> ApiError {
    match error.kind {
        ReplicaErrorKind::Refused(refusal) => match refusal {
            Refusal::Empty => ApiError::empty_array(prompt_param),
            Refusal::InvalidToken { .. } => {
                ApiError::invalid_token(prompt_param, Some(model.limits().vocabulary_size))
            }
            Refusal::TooLong { n_tokens, limit } => {
                ApiError::prompt_too_long(prompt_param, n_tokens, u32::try_from(limit).unwrap_or(u32::MAX))
            }
            Refusal::NeverFits { needed_blocks, n_blocks } => {
                ApiError::prompt_exceeds_capacity(prompt_param, needed_blocks as u64, n_blocks as u64)
            }
            Refusal::QueueFull { .. } => ApiError::overloaded("The server's queue is full.", retry_after_s()),
        },
        ReplicaErrorKind::Draining | ReplicaErrorKind::Stopped => ApiError::shutting_down(retry_after_s()),
        ReplicaErrorKind::Unhealthy => ApiError::no_healthy_worker(retry_after_s()),
        ReplicaErrorKind::Failed => ApiError::internal_error(request_id),
    }
}
