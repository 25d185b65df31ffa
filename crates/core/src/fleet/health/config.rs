//! Thresholds for judging replicas. Does not judge.

use crate::time::Nanos;

/// Thresholds for judging replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthConfig {
    /// Number of consecutive failures that eject a replica.
    pub max_consecutive_failures: u32,
    /// Percentage of failures in two windows above which a replica is ejected.
    pub max_failure_percent: u32,
    /// Minimum number of failures for an ejection by percentage.
    pub min_failures: u32,
    /// Minimum number of outcomes for an ejection by percentage, and of delays for a mean.
    pub min_outcomes: u32,
    /// The window in which outcomes are counted.
    pub window: Nanos,
    /// Factor over the median of the others' mean delays above which a replica is ejected as slow.
    pub max_slowness: u32,
    /// Minimum difference to that median for an ejection as slow.
    pub min_excess: Nanos,
    /// A replica that was ejected as slow stays ejected while its probe takes [`Self::max_slowness`] times
    /// the median of the others' probes and this much longer.
    pub min_probe_excess: Nanos,
    /// Longest time for which the step counter of a replica with work may not change.
    pub max_step_silence: Nanos,
    /// Duration of the first ejection; each further one is twice as long.
    pub ejection: Nanos,
    /// Longest ejection. After being ready for this long, a replica's ejections start at the first duration
    /// again.
    pub max_ejection: Nanos,
    /// Interval at which a ready replica is probed.
    pub probe_interval: Nanos,
    /// Percentage of ejected replicas above which all of them get requests.
    pub panic_percent: u32,
}

impl HealthConfig {
    /// Thresholds for workers of one model, which may be different machines, so that only a large difference
    /// in speed is a fault.
    pub fn of_workers() -> Self {
        Self { max_slowness: 5, probe_interval: Nanos::from_ms(5_000), ..Self::default() }
    }
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self {
            max_consecutive_failures: 5,
            max_failure_percent: 4,
            min_failures: 3,
            min_outcomes: 10,
            window: Nanos::from_ms(10_000),
            max_slowness: 3,
            min_excess: Nanos::from_ms(100),
            min_probe_excess: Nanos::from_ms(20),
            max_step_silence: Nanos::from_ms(10_000),
            ejection: Nanos::from_ms(1_000),
            max_ejection: Nanos::from_ms(30_000),
            probe_interval: Nanos::from_ms(10_000),
            panic_percent: 50,
        }
    }
}
