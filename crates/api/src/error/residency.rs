//! Models that are not in memory. Does not know why.

use http::StatusCode;

use super::{ApiError, echo};

impl ApiError {
    /// The model is not loaded yet; `bytes` of its weights are loaded, of all of them, where that is known.
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

    /// The model is one that only the operator loads, and it is not in memory.
    pub fn model_not_loaded(name: &str) -> Self {
        let message = format!("The model '{}' is not loaded.", echo(name));
        Self::server(StatusCode::SERVICE_UNAVAILABLE, "model_not_loaded", message).with_param("model")
    }

    /// The model could not be loaded; the server's log says why.
    pub fn model_load_failed(name: &str, retry_after_s: u32) -> Self {
        let message = format!("The model '{}' could not be loaded.", echo(name));
        let error = Self::server(StatusCode::SERVICE_UNAVAILABLE, "model_load_failed", message);
        error.with_param("model").retry_after(retry_after_s)
    }
}
