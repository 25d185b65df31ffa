//! Models that no worker and no engine of a fleet has told of yet. Does not know either.

use http::StatusCode;

use super::{ApiError, echo};

impl ApiError {
    /// No worker or engine that answers serves the model, or any; `what` says how the others are. Where they
    /// `have_failed` there is no reason to expect them soon.
    pub fn no_replica_known(model: Option<&str>, what: &str, have_failed: bool, retry_after_s: u32) -> Self {
        let subject = match model {
            Some(model) => format!("No worker or engine that answers serves the model '{}'", echo(model)),
            None => "No worker or engine of this gateway has answered".to_owned(),
        };
        let message = format!("{subject}: {what}. Its operator sees why with 'throng fleet status'.");
        let code = if have_failed { "no_healthy_worker" } else { "model_not_ready" };
        Self::server(StatusCode::SERVICE_UNAVAILABLE, code, message).retry_after(retry_after_s)
    }

    /// The engine that serves the model rejects the request with this status; `told` is its reason.
    pub fn rejected_by_engine(status: StatusCode, told: impl Into<String>, is_too_long: bool) -> Self {
        let code = if is_too_long { "context_length_exceeded" } else { "upstream_rejected" };
        Self::client(status, code, told)
    }

    /// The engine that serves the model does not have what is asked for; `told` is what it said.
    pub fn unsupported_by_engine(told: &str) -> Self {
        let reason = format!("The engine that serves this model has no such endpoint: {}.", echo(told));
        Self::unsupported_by_model("model", &reason)
    }
}
