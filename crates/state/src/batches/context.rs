//! What runners and the work of a batch share.

use std::sync::Arc;
use std::time::Duration;

use throng_store::{Quota, Store};
use tokio::sync::watch;

use super::Answerer;

/// A runner whose lease shows no sign of life for so long has died.
pub const DEAD_AFTER: Duration = Duration::from_secs(10);
/// Signs of life in that time, and looks at what waits.
const N_BEATS: u32 = 10;

/// Bounds of a runner.
#[derive(Debug, Clone, Copy)]
pub struct RunnerSettings {
    /// Lines of a batch that are answered at a time.
    pub max_lines: usize,
    /// Batches that are answered at a time.
    pub max_batches: usize,
    /// Longest line in bytes.
    pub max_line_bytes: usize,
    /// A runner whose lease shows no sign of life for so long has died; the same for all of a database.
    pub dead_after: Duration,
    /// How much a tenant may have with its results.
    pub quota: Quota,
}

impl RunnerSettings {
    /// Interval of signs of life.
    pub(super) fn beat_interval(&self) -> Duration {
        self.dead_after / N_BEATS
    }
}

/// Surroundings of the work of a batch.
#[derive(Debug, Clone)]
pub(super) struct Context {
    pub store: Arc<dyn Store>,
    pub answerer: Arc<dyn Answerer>,
    pub settings: RunnerSettings,
    /// Turns true when the process is to end.
    pub stop: watch::Receiver<bool>,
}

/// Waits until the process is to end.
pub(super) async fn stopped(stop: &mut watch::Receiver<bool>) {
    // Whoever could say so may be gone: then it ends too.
    let _ = stop.wait_for(|stop| *stop).await;
}
