//! The ranks of a replica whose model is divided, as plain numbers. Does not know how they communicate.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Ranks of a divided model, and their measured communication.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankReport {
    /// Number of ranks that share each layer.
    pub tensor: u32,
    /// Number of stages, each with some of the layers.
    pub pipeline: u32,
    /// Name of what carries data from rank to rank.
    pub transport: String,
    /// Time of all steps since the start, in nanoseconds.
    pub steps_ns: u64,
    /// Part of it in exchanges between ranks, waiting for other ranks included.
    pub exchanging_ns: u64,
    /// Number of times that ranks were started again because one was lost.
    pub losses: u64,
}

impl RankReport {
    /// Number of processes.
    pub fn n_ranks(&self) -> u32 {
        self.tensor.saturating_mul(self.pipeline)
    }

    /// Share of communication in the time of steps, from 0 to 1; `None` before the first step.
    pub fn exchanging_share(&self) -> Option<f64> {
        (self.steps_ns > 0).then(|| (self.exchanging_ns as f64 / self.steps_ns as f64).min(1.0))
    }
}

/// Counters of a divided model: its executor counts, others read.
#[derive(Debug, Default)]
pub struct RankCounters {
    steps_ns: AtomicU64,
    exchanging_ns: AtomicU64,
    losses: AtomicU64,
}

impl RankCounters {
    /// Counts a step, and the part of it that was spent in exchanges.
    pub fn count_step(&self, took: Duration, exchanging: Duration) {
        self.steps_ns.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
        self.exchanging_ns.fetch_add(exchanging.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Counts a start of the ranks after the loss of one.
    pub fn count_loss(&self) {
        self.losses.fetch_add(1, Ordering::Relaxed);
    }
}

/// The ranks of a running model, which reports are made of.
#[derive(Debug, Clone)]
pub struct RunningRanks {
    /// Number of ranks that share each layer.
    pub tensor: u32,
    /// Number of stages.
    pub pipeline: u32,
    /// Name of what carries data from rank to rank.
    pub transport: &'static str,
    /// Counters of the executor.
    pub counters: Arc<RankCounters>,
}

impl RunningRanks {
    /// The present figures.
    pub fn report(&self) -> RankReport {
        RankReport {
            tensor: self.tensor,
            pipeline: self.pipeline,
            transport: self.transport.to_owned(),
            steps_ns: self.counters.steps_ns.load(Ordering::Relaxed),
            exchanging_ns: self.counters.exchanging_ns.load(Ordering::Relaxed),
            losses: self.counters.losses.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_that_of_all_steps() {
        let counters = Arc::<RankCounters>::default();
        let ranks =
            RunningRanks { tensor: 2, pipeline: 3, transport: "MPI", counters: Arc::clone(&counters) };
        assert_eq!((ranks.report().n_ranks(), ranks.report().exchanging_share()), (6, None));
        counters.count_step(Duration::from_millis(3), Duration::from_millis(1));
        counters.count_step(Duration::from_millis(5), Duration::from_millis(3));
        counters.count_loss();
        let report = ranks.report();
        assert_eq!((report.exchanging_share(), report.losses), (Some(0.5), 1));
        // Steps in flight at the same time exchange for longer than one of them takes.
        counters.count_step(Duration::ZERO, Duration::from_secs(1));
        assert_eq!(ranks.report().exchanging_share(), Some(1.0));
    }
}
