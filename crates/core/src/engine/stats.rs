//! Numbers of the engine, as for a metrics page. Does not know how they are shown.

use crate::scheduling::ServiceRate;
use crate::scheduling::scheduler::SchedulerStats;

/// A snapshot of the engine.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct EngineStats {
    /// Numbers of running and waiting requests, blocks, tokens, cache hits and preemptions.
    pub scheduler: SchedulerStats,
    /// Measured speed; `None` before the first step.
    pub machine: Option<ServiceRate>,
    /// Histogram of new tokens a step.
    pub iteration_tokens: IterationTokens,
    /// Time spent in steps, in seconds.
    pub step_seconds: f64,
    /// Counts of failures.
    pub failures: FailureCounts,
    /// Number of executors made after the first one.
    pub executor_restarts: u64,
    /// Number of threads with given-up steps that still hang.
    pub abandoned_threads: u32,
}

/// Counts of failures by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FailureCounts {
    /// Number of steps that took too long.
    pub timed_out_steps: u64,
    /// Number of steps that panicked.
    pub panicked_steps: u64,
    /// Number of steps that the executor could not run.
    pub failed_steps: u64,
    /// Number of failed requests.
    pub requests: u64,
}

/// Histogram of new tokens a step, with vLLM's bounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IterationTokens {
    /// Number of steps with at most [`Self::BOUNDS`]`[i]` tokens and more than the bound before; the last
    /// entry counts steps above all bounds.
    pub counts: [u64; 16],
    /// Number of new tokens of all steps.
    pub sum: u64,
}

impl IterationTokens {
    /// Upper bounds of all buckets but the last.
    pub const BOUNDS: [u64; 15] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];

    /// Counts a step of `n_tokens` new tokens.
    pub fn observe(&mut self, n_tokens: u64) {
        self.counts[Self::BOUNDS.partition_point(|&bound| bound < n_tokens)] += 1;
        self.sum += n_tokens;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let mut histogram = IterationTokens::default();
        for n in [1, 2, 3, 4, 16_384, 16_385] {
            histogram.observe(n);
        }
        assert_eq!(histogram.counts, [1, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(histogram.sum, 1 + 2 + 3 + 4 + 16_384 + 16_385);
    }
}
