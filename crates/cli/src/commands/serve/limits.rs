//! Shares the limits of keys with other gateways through Redis.

use throng_gateway::{Loading, SharedLimits};

use crate::usage_error::UsageError;

/// Shares the limits while the server runs. Does nothing without Redis.
///
/// # Errors
/// When the URL of Redis is invalid, or its certificates cannot be read.
pub fn share(loading: &Loading) -> Result<Option<SharedLimits>, UsageError> {
    loading.share_limits().map_err(|fault| UsageError(format!("--redis: {fault}")))
}

/// Returns the unused part of this gateway's leases to the other gateways.
pub async fn finish(limits: Option<SharedLimits>) {
    if let Some(limits) = limits {
        limits.finish().await;
    }
}
