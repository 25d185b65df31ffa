//! What an operator may choose about the engine. Does not know files and flags.

use crate::scheduling::scheduler::SchedulerConfig;

/// Settings of the engine.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Settings of planning, and bounds on waiting requests.
    pub scheduler: SchedulerConfig,
    /// A step that takes longer is given up: its requests fail, and the engine goes on with a new executor.
    pub step_timeout_ms: u64,
    /// A request that has waited this long for its first step fails; 0: it waits as long as it takes.
    pub queue_timeout_ms: u64,
    /// A request whose masks do not come for this long, because its constraint is too complex, fails.
    pub mask_timeout_ms: u64,
    /// Most threads that evaluate masks, for quick and for slow ones each; 0: a number for this machine.
    pub max_mask_threads: u32,
    /// Called by each thread that evaluates masks when it starts, once for quick and twice for slow masks:
    /// lowers its priority.
    pub lower_priority: Option<fn()>,
    /// Most threads of steps that were given up and still hang. With one more the engine is unhealthy.
    pub max_abandoned_threads: u32,
    /// With this many events waiting for the reader of one stream (at least eight for each of its
    /// continuations) the request is paused; it goes on once the reader has taken half of them. An event
    /// counts once more for every 8 log-probabilities it carries. At least 2.
    pub max_buffered_events: u32,
    /// Most requests that are paused at a time. With one more, the one that was paused first among those of
    /// the tenant with the most of them fails.
    pub max_paused_requests: u32,
    /// A request that was paused this long without a break fails.
    pub pause_timeout_ms: u64,
    /// Number of latest steps that the step log keeps.
    pub max_logged_steps: u32,
    /// Number of latest inputs that the input log keeps. At least 1.
    pub max_logged_inputs: u32,
    /// Bytes of prompts and outputs that the input log keeps; the latest input is kept whatever its size.
    pub max_logged_input_bytes: u64,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            scheduler: SchedulerConfig::default(),
            step_timeout_ms: 120_000,
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
