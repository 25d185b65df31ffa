//! Bounds the number of repeated attempts, so that a failing replica does not double the load of the
//! others. Does not know why an attempt failed. Attempts that are bounded otherwise, such as those after
//! the loss of a process with running requests, are not counted here.

/// Number of requests that pay for one retry.
const PER_RETRY: u64 = 10;

/// Budget of retries: at most a tenth of all requests, and a few more for the first ones.
#[derive(Debug, Clone)]
pub struct RetryBudget {
    tenths: u64,
    max_tenths: u64,
}

impl RetryBudget {
    /// Creates a budget of `reserve` retries that never saves up more than `max_saved`.
    pub fn new(reserve: u32, max_saved: u32) -> Self {
        let max_tenths = u64::from(max_saved) * PER_RETRY;
        Self { tenths: (u64::from(reserve) * PER_RETRY).min(max_tenths), max_tenths }
    }

    /// Notes a new request with its first attempt.
    pub fn request(&mut self) {
        self.tenths = (self.tenths + 1).min(self.max_tenths);
    }

    /// Whether one more attempt is within the budget, which it is then charged to.
    #[must_use]
    pub fn retry(&mut self) -> bool {
        let left = self.tenths.checked_sub(PER_RETRY);
        self.tenths = left.unwrap_or(self.tenths);
        left.is_some()
    }
}
