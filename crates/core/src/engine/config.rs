//! Settings of the engine. Does not know files and flags.

use crate::scheduling::scheduler::SchedulerConfig;

/// Settings of the engine.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Settings of planning, and bounds on waiting requests.
    pub scheduler: SchedulerConfig,
    /// Time limit of a step in ms: beyond it the step's requests fail, and the engine continues with a new
    /// executor.
    pub step_timeout_ms: u64,
    /// Longest time for making an executor in ms, after which the engine is unhealthy.
    pub executor_timeout_ms: u64,
    /// Longest wait of a request for its first step in ms, beyond which it fails; 0 for no limit.
    pub queue_timeout_ms: u64,
    /// Longest wait of a request for its masks in ms, beyond which it fails because its constraint is too
    /// complex.
    pub mask_timeout_ms: u64,
    /// Maximum number of threads that evaluate masks, for quick and for slow ones each; 0 for a number that
    /// depends on the machine.
    pub max_mask_threads: u32,
    /// Function that lowers the priority of the calling thread. Each thread that evaluates masks calls it
    /// at its start, once for quick and twice for slow masks.
    pub lower_priority: Option<fn()>,
    /// Maximum number of threads with given-up steps that still hang. With one more the engine is
    /// unhealthy.
    pub max_abandoned_threads: u32,
    /// Number of events waiting for the reader of one stream at which the request is paused (at least eight
    /// for each of its continuations); it continues once the reader has taken half of them. An event counts
    /// once more for every 8 log-probabilities it carries. At least 2.
    pub max_buffered_events: u32,
    /// Maximum number of paused requests. With one more, the request that was paused first of the tenant
    /// with the most paused ones fails.
    pub max_paused_requests: u32,
    /// Longest time in ms that a request may be paused without a break, beyond which it fails.
    pub pause_timeout_ms: u64,
    /// Maximum number of latest steps in the step log.
    pub max_logged_steps: u32,
    /// Maximum number of latest inputs in the input log, at least 1.
    pub max_logged_inputs: u32,
    /// Maximum bytes of prompts and outputs in the input log; the latest input is always kept.
    pub max_logged_input_bytes: u64,
}

/// [`EngineConfig::executor_timeout_ms`] of an executor whose weights are in memory.
pub const DEFAULT_EXECUTOR_TIMEOUT_MS: u64 = 60_000;

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            scheduler: SchedulerConfig::default(),
            step_timeout_ms: 120_000,
            executor_timeout_ms: DEFAULT_EXECUTOR_TIMEOUT_MS,
            queue_timeout_ms: 0,
            mask_timeout_ms: 30_000,
            max_mask_threads: 0,
            lower_priority: None,
            max_abandoned_threads: 2,
            max_buffered_events: 32,
            max_paused_requests: 1024,
            pause_timeout_ms: 600_000,
            max_logged_steps: 1024,
            max_logged_inputs: 512,
            max_logged_input_bytes: 4 << 20,
        }
    }
}
