//! Progress of loading models, and the refusals meanwhile. Does not load.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use axum::response::Response;

use crate::awaited::FleetMembers;
use crate::rejection::reject;
use throng_api::ApiError;
use throng_http::retry_after::retry_after_s;

/// Bytes of the weights that are loaded.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Whether models are served by workers and engines instead of files.
    is_of_fleet: AtomicBool,
    members: FleetMembers,
    done_bytes: AtomicU64,
    total_bytes: AtomicU64,
}

impl Progress {
    /// Creates the progress of a server to which these members may add models.
    pub fn of(members: FleetMembers) -> Self {
        Self { members, ..Self::default() }
    }

    /// Notes that models are served by workers and engines.
    pub fn expect_fleet(&self) {
        self.is_of_fleet.store(true, Ordering::Release);
    }

    /// Sets the number of loaded bytes, and their total.
    pub fn report(&self, done_bytes: u64, total_bytes: u64) {
        self.done_bytes.store(done_bytes, Ordering::Release);
        self.total_bytes.store(total_bytes, Ordering::Release);
    }

    /// Loaded bytes and all bytes; `None` until they are determined.
    fn bytes(&self) -> Option<(u64, u64)> {
        let total = self.total_bytes.load(Ordering::Acquire);
        (total > 0).then(|| (self.done_bytes.load(Ordering::Acquire).min(total), total))
    }

    /// Refusal of a request for a model.
    pub fn refusal(&self) -> ApiError {
        if self.is_of_fleet.load(Ordering::Acquire) {
            return self.members.refusal();
        }
        ApiError::model_not_ready(self.bytes(), retry_after_s())
    }

    /// The refusal for health checks, with the bytes beside the error.
    pub fn health(&self) -> Response {
        let error = self.refusal();
        let mut body = serde_json::from_slice(&error.to_json()).unwrap_or_else(|_| serde_json::json!({}));
        let is_of_fleet = self.is_of_fleet.load(Ordering::Acquire);
        body["status"] = if is_of_fleet { "waiting" } else { "loading" }.into();
        if let Some((done, total)) = self.bytes() {
            body["loaded_bytes"] = done.into();
            body["total_bytes"] = total.into();
        }
        let mut response = reject(error);
        *response.body_mut() = body.to_string().into();
        response
    }
}
