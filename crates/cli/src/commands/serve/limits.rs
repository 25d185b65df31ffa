//! Shares the limits of keys with other gateways through Redis.

use throng_gateway::{Loading, SharedLimits};

use crate::usage_error::UsageError;

/// Shares the limits while the server runs. Does nothing without a Redis.
///
/// # Errors
/// When its URL cannot be understood, or its certificates cannot be read.
pub fn share(loading: &Loading) -> Result<Option<SharedLimits>, UsageError> {
    loading.share_limits().map_err(|fault| UsageError(format!("--redis: {fault}")))
}

/// Gives back to the other gateways what this one does not use.
pub async fn finish(limits: Option<SharedLimits>) {
    if let Some(limits) = limits {
        limits.finish().await;
    }
}
