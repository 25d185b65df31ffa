//! Errors of models that no worker or engine of the fleet serves. Does not know workers and engines.

use http::StatusCode;

use super::{ApiError, echo};

impl ApiError {
    /// No reachable worker or engine serves the model, or any model. `what` describes the state of the
    /// others. If they `have_failed`, they are not expected soon.
    pub fn no_replica_known(model: Option<&str>, what: &str, have_failed: bool, retry_after_s: u32) -> Self {
        let subject = match model {
            Some(model) => format!("No worker or engine that answers serves the model '{}'", echo(model)),
            None => "No worker or engine of this gateway has answered".to_owned(),
        };
        let message = format!("{subject}: {what}. Its operator sees why with 'throng fleet status'.");
        let code = if have_failed { "no_healthy_worker" } else { "model_not_ready" };
        Self::server(StatusCode::SERVICE_UNAVAILABLE, code, message).retry_after(retry_after_s)
    }

    /// The upstream engine rejects the request with this status. `told` is the engine's message.
    pub fn rejected_by_engine(status: StatusCode, told: impl Into<String>, is_too_long: bool) -> Self {
        let code = if is_too_long { "context_length_exceeded" } else { "upstream_rejected" };
        Self::client(status, code, told)
    }

    /// The upstream engine lacks the requested endpoint. `told` is the engine's message.
    pub fn unsupported_by_engine(told: &str) -> Self {
        let reason = format!("The engine that serves this model has no such endpoint: {}.", echo(told));
        Self::unsupported_by_model("model", &reason)
    }
}
