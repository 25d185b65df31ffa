//! Pauses between two looks at an operation in progress: none at first, then longer ones, so that a rank that
//! waits for the next request leaves its core to others. Does not know operations.

use std::time::{Duration, Instant};

/// Time of looking again and again.
const SPINNING: Duration = Duration::from_micros(50);
/// Time after which the thread sleeps between polls; before, it only lets others run.
const YIELDING: Duration = Duration::from_millis(5);
/// Interval of polls.
const SLEEP: Duration = Duration::from_micros(100);
/// Time after which the intervals are longer.
const IDLE: Duration = Duration::from_secs(1);
/// Interval of polls after that time.
const IDLE_SLEEP: Duration = Duration::from_micros(500);

/// The wait for an operation.
#[derive(Debug)]
pub(super) struct Pauses {
    since: Instant,
}

impl Pauses {
    pub(super) fn begin() -> Self {
        Self { since: Instant::now() }
    }

    /// Pauses, and returns whether deadlines and losses should be looked at.
    pub(super) fn pause(&self) -> bool {
        let waited = self.since.elapsed();
        if waited < SPINNING {
            std::hint::spin_loop();
            return false;
        }
        match waited {
            waited if waited < YIELDING => std::thread::yield_now(),
            waited if waited < IDLE => std::thread::sleep(SLEEP),
            _ => std::thread::sleep(IDLE_SLEEP),
        }
        true
    }
}
