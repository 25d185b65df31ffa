//! A look at the engine in numbers, enough for a metrics page. Does not know how they are shown.

use crate::scheduling::ServiceRate;
use crate::scheduling::scheduler::SchedulerStats;

/// A snapshot of the engine.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct EngineStats {
    /// Running and waiting requests, holders of blocks, and counts of tokens, hits and preemptions.
    pub scheduler: SchedulerStats,
    /// Measured speed; none before the first step.
    pub machine: Option<ServiceRate>,
    /// New tokens a step.
    pub iteration_tokens: IterationTokens,
    /// Time spent in steps, in seconds.
    pub step_seconds: f64,
    /// Counts of failures.
    pub failures: FailureCounts,
    /// Executors made after the first.
    pub executor_restarts: u64,
    /// Threads of steps that were given up and still hang.
    pub abandoned_threads: u32,
}

/// Counts of failures by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FailureCounts {
    /// Steps that took too long.
    pub timed_out_steps: u64,
    /// Steps that panicked.
    pub panicked_steps: u64,
    /// Steps the executor could not run.
    pub failed_steps: u64,
    /// Requests that ended with a failure, whatever its cause.
    pub requests: u64,
}

/// A histogram of new tokens a step, with the bounds vLLM uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IterationTokens {
    /// Steps with at most [`Self::BOUNDS`]`[i]` tokens and more than the bound before; the last: more than
    /// all.
    pub counts: [u64; 16],
    /// New tokens of all steps.
    pub sum: u64,
}

impl IterationTokens {
    /// Upper bounds of all buckets but the last.
    pub const BOUNDS: [u64; 15] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];

    /// Counts a step.
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
