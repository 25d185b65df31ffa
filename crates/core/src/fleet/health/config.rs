//! By which numbers replicas are judged. Does not judge.

use crate::time::Nanos;

/// Settings of the judgement of replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthConfig {
    /// Number of consecutive failures that eject a replica.
    pub max_consecutive_failures: u32,
    /// A larger share of failures in two windows ejects it.
    pub max_failure_percent: u32,
    /// Minimum number of failures for that.
    pub min_failures: u32,
    /// Minimum number of outcomes for that, which is also how many delays make a mean.
    pub min_outcomes: u32,
    /// The window in which outcomes are counted.
    pub window: Nanos,
    /// A mean delay that is so many times the median of the others' ejects it.
    pub max_slowness: u32,
    /// Minimum difference for that.
    pub min_excess: Nanos,
    /// A replica that was ejected for its slowness stays out while its probe takes as many times the median
    /// of the others' probes, and longer by so much.
    pub min_probe_excess: Nanos,
    /// The step counter of a replica with work must move in this time.
    pub max_step_silence: Nanos,
    /// The first ejection; each further one is twice as long.
    pub ejection: Nanos,
    /// Longest ejection. A replica that was ready for this long begins anew.
    pub max_ejection: Nanos,
    /// A ready replica is probed this often.
    pub probe_interval: Nanos,
    /// If a larger share of the replicas is ejected, all of them get requests.
    pub panic_percent: u32,
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
