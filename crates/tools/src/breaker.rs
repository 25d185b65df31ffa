//! A circuit breaker: after several failures in a row calls fail at once, until one is tried again. Has no
//! clock.

use std::time::Duration;

use tokio::time::Instant;

/// The breaker of a tool.
#[derive(Debug)]
pub(crate) struct Breaker {
    max_failures: u32,
    rest: Duration,
    n_failures: u32,
    /// Time until which calls fail at once after too many failures.
    open_until: Option<Instant>,
}

impl Breaker {
    pub fn new(max_failures: u32, rest: Duration) -> Self {
        Self { max_failures: max_failures.max(1), rest, n_failures: 0, open_until: None }
    }

    /// Admits a call, or returns the time until one is tried. After that time one call is a trial; others
    /// wait for its end, for the same time as before.
    ///
    /// # Errors
    /// Time until the breaker admits a call.
    pub fn admit(&mut self, now: Instant) -> Result<(), Duration> {
        match self.open_until {
            Some(until) if now < until => Err(until - now),
            Some(_) => {
                self.open_until = Some(now + self.rest);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Notes the end of a call.
    pub fn ended(&mut self, has_failed: bool, now: Instant) {
        if !has_failed {
            (self.n_failures, self.open_until) = (0, None);
            return;
        }
        self.n_failures = self.n_failures.saturating_add(1);
        if self.n_failures >= self.max_failures {
            self.open_until = Some(now + self.rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_failures_in_a_row_and_closes_after_one_trial() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let mut breaker = Breaker::new(2, Duration::from_secs(10));
        breaker.ended(true, at(0));
        breaker.ended(false, at(1));
        breaker.ended(true, at(2));
        assert_eq!(breaker.admit(at(3)), Ok(()), "not two in a row");
        breaker.ended(true, at(3));
        assert_eq!(breaker.admit(at(4)), Err(Duration::from_secs(9)));
        assert_eq!(breaker.admit(at(13)), Ok(()), "the trial");
        assert_eq!(breaker.admit(at(14)), Err(Duration::from_secs(9)), "only one at a time");
        breaker.ended(true, at(15));
        assert_eq!(breaker.admit(at(16)), Err(Duration::from_secs(9)));
        assert_eq!(breaker.admit(at(26)), Ok(()));
        breaker.ended(false, at(27));
        assert_eq!(breaker.admit(at(27)), Ok(()));
    }
}
