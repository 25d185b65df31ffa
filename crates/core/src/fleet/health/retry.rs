//! How many attempts may be repeated, so that a failing replica does not double the load of the others. Does
//! not know why an attempt failed: what is bounded by itself, as the loss of a process that runs requests, is
//! not asked for here.

/// A request pays in a tenth of a retry, and a retry costs a whole one.
const PER_RETRY: u64 = 10;

/// Retries are at most a tenth of all requests, and a few more for the first ones.
#[derive(Debug, Clone)]
pub struct RetryBudget {
    tenths: u64,
    max_tenths: u64,
}

impl RetryBudget {
    /// Starts with `reserve` retries and never saves up more than `max_saved`.
    pub fn new(reserve: u32, max_saved: u32) -> Self {
        let max_tenths = u64::from(max_saved) * PER_RETRY;
        Self { tenths: (u64::from(reserve) * PER_RETRY).min(max_tenths), max_tenths }
    }

    /// A request came in: its first attempt.
    pub fn request(&mut self) {
        self.tenths = (self.tenths + 1).min(self.max_tenths);
    }

    /// Whether one more attempt may be made; it is paid for then.
    #[must_use]
    pub fn retry(&mut self) -> bool {
        let left = self.tenths.checked_sub(PER_RETRY);
        self.tenths = left.unwrap_or(self.tenths);
        left.is_some()
    }
}
