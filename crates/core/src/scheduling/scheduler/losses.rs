//! Steps of a request that were lost with a process. Does not know processes.

use crate::time::{Nanos, Timestamp};

/// Number of losses that a request outlives, each at most [`LOSSES_WITHIN`] after the one before.
const MOST_LOSSES: u32 = 3;

/// Time for which a loss counts.
const LOSSES_WITHIN: Nanos = Nanos::from_ms(60_000);

/// Recent losses of one request.
#[derive(Debug, Default)]
pub(super) struct Losses {
    n_losses: u32,
    last: Option<Timestamp>,
}

impl Losses {
    /// Counts a loss, once for all steps that are lost at the same time. Returns whether the request has had
    /// so many that it may be the reason.
    pub(super) fn are_too_many(&mut self, now: Timestamp) -> bool {
        match self.last {
            Some(last) if last == now => {}
            Some(last) if now.since(last) < LOSSES_WITHIN => self.n_losses += 1,
            _ => self.n_losses = 1,
        }
        self.last = Some(now);
        self.n_losses > MOST_LOSSES
    }
}
