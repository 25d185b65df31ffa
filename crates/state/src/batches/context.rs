//! State shared by a runner and its batches.

use std::sync::Arc;
use std::time::Duration;

use throng_store::{Quota, Store};
use tokio::sync::watch;

use super::Answerer;

/// Default of [`RunnerSettings::dead_after`].
pub const DEAD_AFTER: Duration = Duration::from_secs(10);
/// Number of renewals of a lease in that time, and of searches for waiting batches.
const N_BEATS: u32 = 10;

/// Bounds of a runner.
#[derive(Debug, Clone, Copy)]
pub struct RunnerSettings {
    /// Maximum number of lines of a batch that are answered at a time.
    pub max_lines: usize,
    /// Maximum number of batches that are answered at a time.
    pub max_batches: usize,
    /// Maximum length of a line in bytes.
    pub max_line_bytes: usize,
    /// Time without renewal of its lease after which a runner counts as dead; the same for all runners of a
    /// database.
    pub dead_after: Duration,
    /// Quota of a tenant, results included.
    pub quota: Quota,
}

impl RunnerSettings {
    /// Interval at which leases are renewed.
    pub(super) fn beat_interval(&self) -> Duration {
        self.dead_after / N_BEATS
    }
}

/// State shared by the work of a batch.
#[derive(Debug, Clone)]
pub(super) struct Context {
    pub store: Arc<dyn Store>,
    pub answerer: Arc<dyn Answerer>,
    pub settings: RunnerSettings,
    /// Becomes true when the process is ending.
    pub stop: watch::Receiver<bool>,
}

/// Waits until the process is ending.
pub(super) async fn stopped(stop: &mut watch::Receiver<bool>) {
    // Whoever could say so may be gone: then it ends too.
    let _ = stop.wait_for(|stop| *stop).await;
}
