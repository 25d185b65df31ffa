//! Functions for the time of day.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the seconds since the epoch; 0 where the clock is set before it.
pub fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
