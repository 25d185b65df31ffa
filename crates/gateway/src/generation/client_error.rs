//! Translates errors of replicas, templates and tokenizers into errors for clients; no other module does.
//! Does not know requests.

use throng_core::scheduling::admission::Refusal;
use throng_fleet::replica::{ReplicaError, ReplicaErrorKind};

use crate::served_model::ModelEntry;
use throng_api::{ApiError, ConstraintParam};
use throng_http::retry_after::{retry_after_at_least_s, retry_after_s};
use throng_text::{TemplateError, TextError};

/// Parameters that an error may be about.
#[derive(Debug, Clone)]
pub(crate) struct BlamedParams {
    /// Name of the prompt's parameter.
    pub prompt: &'static str,
    /// Parameter of the output's constraint, if there is one.
    pub constraint: Option<ConstraintParam>,
    /// Header that names the only replica that may answer, if the request has it.
    pub replica: Option<&'static str>,
}

/// Error for the client from a replica's error.
pub(super) fn client_error(
    error: &ReplicaError,
    blamed: &BlamedParams,
    model: &ModelEntry,
    request_id: &str,
) -> ApiError {
    let prompt_param = blamed.prompt;
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
            Refusal::UnreadableMedia => {
                ApiError::invalid_value(prompt_param, "This model reads text only.".to_owned())
            }
            Refusal::QueueFull { .. } => ApiError::overloaded("The server's queue is full.", retry_after_s()),
        },
        ReplicaErrorKind::Overloaded { retry_after_ms } => {
            let reason = "The server is overloaded: the request would wait for too long.";
            ApiError::overloaded(reason, retry_after_at_least_s(retry_after_ms))
        }
        ReplicaErrorKind::QueuedTooLong => {
            let reason =
                "The server is overloaded: the request has waited in the queue for as long as it may.";
            ApiError::overloaded(reason, retry_after_s())
        }
        ReplicaErrorKind::DeadlineTooShort { needed_ms } => ApiError::deadline_too_short(needed_ms),
        ReplicaErrorKind::TimedOut => ApiError::generation_timeout(),
        ReplicaErrorKind::Draining | ReplicaErrorKind::Stopped => ApiError::shutting_down(retry_after_s()),
        ReplicaErrorKind::Unhealthy => unavailable(blamed.replica),
        ReplicaErrorKind::NothingAllowed => ApiError::nothing_allowed(blamed.constraint.as_ref()),
        ReplicaErrorKind::ConstraintTooComplex => {
            ApiError::constraint_too_complex(blamed.constraint.as_ref())
        }
        ReplicaErrorKind::Failed => ApiError::internal_error(request_id),
    }
}

/// Error for the client when no replica has answered; `header` names the only one that may, if there is one.
pub(crate) fn unavailable(header: Option<&str>) -> ApiError {
    match header {
        Some(header) => ApiError::named_worker_unavailable(header, retry_after_s()),
        None => ApiError::no_healthy_worker(retry_after_s()),
    }
}

/// Error for the client from a conversation that its template refuses.
pub(super) fn template_error(error: &TemplateError) -> ApiError {
    match error {
        TemplateError::ReservedArgument { name } => {
            ApiError::unknown_parameter(format!("chat_template_kwargs.{name}"))
        }
        TemplateError::NothingToContinue(reason) => {
            ApiError::invalid_value("continue_final_message", reason.clone())
        }
        other => ApiError::template_error(&other.to_string()),
    }
}

/// Error for the client from a failed tokenization.
pub(crate) fn text_error(error: &TextError, param: &str, model: &ModelEntry) -> ApiError {
    match error {
        TextError::TooLong { n_bytes, .. } => {
            ApiError::text_too_long(param, *n_bytes, model.limits().max_model_len)
        }
        TextError::Stopped => ApiError::incomplete_body(),
        TextError::Encode(_) => ApiError::invalid_value(param, "This text cannot be tokenized."),
    }
}
