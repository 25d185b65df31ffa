//! Errors of models that are not in memory. Does not know the cause.

use http::StatusCode;

use super::{ApiError, echo};

impl ApiError {
    /// The model is still loading. `bytes` are the loaded and the total bytes of its weights, if known.
    pub fn model_not_ready(bytes: Option<(u64, u64)>, retry_after_s: u32) -> Self {
        let message = match bytes {
            None => "The model is loading.".to_owned(),
            Some((done, total)) => {
                let percent = u128::from(done) * 100 / u128::from(total.max(1));
                format!("The model is loading: {percent} % ({done} of {total} bytes).")
            }
        };
        Self::server(StatusCode::SERVICE_UNAVAILABLE, "model_not_ready", message).retry_after(retry_after_s)
    }

    /// The model is not in memory, and only the operator may load it.
    pub fn model_not_loaded(name: &str) -> Self {
        let message = format!("The model '{}' is not loaded.", echo(name));
        Self::server(StatusCode::SERVICE_UNAVAILABLE, "model_not_loaded", message).with_param("model")
    }

    /// The model could not be loaded; the server's log has the reason.
    pub fn model_load_failed(name: &str, retry_after_s: u32) -> Self {
        let message = format!("The model '{}' could not be loaded.", echo(name));
        let error = Self::server(StatusCode::SERVICE_UNAVAILABLE, "model_load_failed", message);
        error.with_param("model").retry_after(retry_after_s)
    }

    /// The operator does not allow downloads. `reason` is a sentence without its full stop.
    pub fn pull_forbidden(reason: &str) -> Self {
        Self::client(StatusCode::FORBIDDEN, "permission_denied", sentence(reason)).with_param("model")
    }

    /// The model exceeds the operator's limit on downloaded bytes.
    pub fn no_room_for_model(reason: &str) -> Self {
        Self::client(StatusCode::FORBIDDEN, "pull_limit_exceeded", sentence(reason)).with_param("model")
    }

    /// The download of the model failed.
    pub fn pull_failed(reason: &str) -> Self {
        Self::client(StatusCode::NOT_FOUND, "pull_failed", sentence(reason)).with_param("model")
    }

    /// Another model is being downloaded.
    pub fn pull_in_progress(other: &str, retry_after_s: u32) -> Self {
        let message = format!("The model '{}' is being brought; one comes at a time.", echo(other));
        let error = Self::server(StatusCode::SERVICE_UNAVAILABLE, "pull_in_progress", message);
        error.retry_after(retry_after_s)
    }

    /// The operation is only available on the server's machine. `instead` is a whole sentence.
    pub fn not_over_http(instead: &str) -> Self {
        Self::bad_request("unsupported_by_server", instead.to_owned())
    }
}

/// Maximum characters of a download's error in a message.
const MAX_REASON_CHARS: usize = 2000;

/// The reason in one line, with a capital letter and a full stop.
fn sentence(reason: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let mut rest = reason.chars().take(MAX_REASON_CHARS).map(plain);
    let first = rest.next().map(|first| first.to_uppercase().collect::<String>());
    let rest: String = rest.collect();
    format!("{}{}.", first.unwrap_or_default(), rest.trim_end_matches('.'))
}
