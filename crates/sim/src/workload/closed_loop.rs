//! Users that wait for their answer, pause, and send the next request.

use fastrand::Rng;
use throng_core::time::{Nanos, Timestamp};

use super::Workload;
use super::open_loop::RequestShape;
use super::request::{EndedRequest, TimedRequest};
use crate::distribution::Distribution;
use crate::error::SimError;

/// A number of users with one request each at a time.
#[derive(Debug)]
pub struct ClosedLoop {
    shape: RequestShape,
    /// Seconds between an answer and the next request.
    think_s: Distribution,
    end: Timestamp,
    seed: u64,
    rng: Rng,
    n_first: u32,
    n_users: u32,
    n_made: u64,
    /// Time of the first request of the next user.
    first_at: f64,
    start_gap_s: f64,
}

impl ClosedLoop {
    /// Users who send requests until `duration` is over, the first of them at once and all within `ramp`.
    ///
    /// # Errors
    /// When a number cannot be one of a workload.
    pub fn new(
        n_users: u32,
        think_s: Distribution,
        shape: RequestShape,
        (ramp, duration): (Nanos, Nanos),
        seed: u64,
    ) -> Result<Self, SimError> {
        shape.check()?;
        think_s.check("think_s")?;
        if n_users == 0 {
            return Err(SimError::setting("n_users", "there must be at least one"));
        }
        let start_gap_s = ramp.as_secs_f64() / f64::from(n_users);
        let (rng, end) = (Rng::with_seed(seed), Timestamp::default() + duration);
        Ok(Self {
            shape,
            think_s,
            end,
            seed,
            rng,
            n_first: 0,
            n_users,
            n_made: 0,
            first_at: 0.0,
            start_gap_s,
        })
    }

    fn make(&mut self, at: Timestamp) -> Option<TimedRequest> {
        if at > self.end {
            return None;
        }
        let tag = self.n_made;
        self.n_made += 1;
        Some(TimedRequest { at, request: self.shape.request(self.seed, tag, &mut self.rng), tag })
    }
}

impl Workload for ClosedLoop {
    fn next_request(&mut self) -> Result<Option<TimedRequest>, SimError> {
        if self.n_first == self.n_users {
            return Ok(None);
        }
        self.n_first += 1;
        let at = Timestamp::from_ns((self.first_at * 1e9) as u64);
        self.first_at += self.start_gap_s;
        Ok(self.make(at))
    }

    fn follow_up(&mut self, ended: &EndedRequest) -> Option<TimedRequest> {
        let think = Nanos((self.think_s.sample(&mut self.rng) * 1e9) as u64);
        self.make(ended.at + think)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_asks_again_after_its_answer() {
        let shape = RequestShape::new(Distribution::Constant(10.0), Distribution::Constant(5.0));
        let times = (Nanos::from_ms(100), Nanos::from_ms(1_000));
        let mut users = ClosedLoop::new(2, Distribution::Constant(0.2), shape, times, 1).expect("valid");
        let first = users.next_request().expect("no file").expect("a user");
        assert!(users.next_request().expect("no file").is_some());
        assert!(users.next_request().expect("no file").is_none());
        let at = first.at + Nanos::from_ms(300);
        let ended = EndedRequest { tag: first.tag, at, n_output: 5, is_whole: true };
        assert_eq!(users.follow_up(&ended).expect("time is left").at, at + Nanos::from_ms(200));
        let late = EndedRequest { at: Timestamp::default() + Nanos::from_ms(900), ..ended };
        assert!(users.follow_up(&late).is_none());
    }
}
