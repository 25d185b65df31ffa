//! Availability of Redis for this gateway, for the metrics. Does not know limits.

use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use throng_metering::metrics::RedisState;

/// Whether Redis answers.
#[derive(Debug, Default)]
pub(crate) struct RedisWatch(Mutex<RedisState>);

impl RedisWatch {
    /// Notes whether a question was answered.
    pub fn heard(&self, is_answered: bool) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_answering = is_answered;
        match is_answered {
            true => state.last_answer = Some(SystemTime::now()),
            false => state.n_failures += 1,
        }
    }

    /// Present state of the connection.
    pub fn state(&self) -> RedisState {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
