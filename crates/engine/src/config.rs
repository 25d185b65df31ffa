//! What an operator may choose about the engine. Refuses to know files and flags.

use throng_core::scheduler::SchedulerConfig;

/// How the engine runs.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// How steps are planned and what may wait.
    pub scheduler: SchedulerConfig,
    /// A step that takes longer is given up: its requests fail, and the engine goes on with a new executor.
    pub step_timeout_ms: u64,
    /// Most threads of steps that were given up and still hang. With one more the engine is unhealthy.
    pub max_abandoned_threads: u32,
    /// Most events that wait for the reader of one stream. A reader that is farther behind loses the stream.
    pub max_buffered_events: u32,
    /// How many of the latest steps the step log keeps.
    pub max_logged_steps: u32,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            scheduler: SchedulerConfig::default(),
            step_timeout_ms: 120_000,
            max_abandoned_threads: 2,
            max_buffered_events: 16_384,
            max_logged_steps: 1024,
        }
    }
}
