//! The bounds around each call of a tool: breaker, queue, concurrency, deadline. Does not know the call.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use throng_api::answer::CallFailure;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::breaker::Breaker;
use crate::config::LimitsConfig;
use crate::error::counts_for_breaker;

/// The gate of a tool.
#[derive(Debug)]
pub(crate) struct Gate {
    limits: LimitsConfig,
    /// Places of calls that run or wait.
    places: Semaphore,
    running: Semaphore,
    breaker: Mutex<Breaker>,
}

impl Gate {
    pub fn new(limits: LimitsConfig) -> Self {
        let concurrency = limits.concurrency.max(1) as usize;
        let rest = Duration::from_secs(limits.breaker_s);
        Self {
            limits,
            places: Semaphore::new(concurrency + limits.queue as usize),
            running: Semaphore::new(concurrency),
            breaker: Mutex::new(Breaker::new(limits.breaker_failures, rest)),
        }
    }

    /// Runs a call of `tool` within the bounds. Dropping the future ends the call.
    ///
    /// # Errors
    /// The errors of the call; 429 when the queue is full, 503 while the breaker is open, 504 at the
    /// deadline.
    pub async fn run<T>(
        &self,
        tool: &str,
        call: impl Future<Output = Result<T, CallFailure>>,
    ) -> Result<T, CallFailure> {
        let Ok(_place) = self.places.try_acquire() else {
            return Err(CallFailure::unanswered(429, format!("Too many calls of '{tool}' wait already.")));
        };
        self.breaker().admit(Instant::now()).map_err(|wait| {
            let seconds = wait.as_secs() + 1;
            CallFailure::unanswered(
                503,
                format!("'{tool}' failed several times; it is tried again in {seconds} s."),
            )
        })?;
        let deadline = Instant::now() + Duration::from_secs(self.limits.timeout_s);
        let late = |_| {
            CallFailure::unanswered(504, format!("'{tool}' did not end within {} s.", self.limits.timeout_s))
        };
        let running = timeout_at(deadline, self.running.acquire()).await.map_err(late)?;
        let _running = running.expect("the semaphore is never closed");
        let result = timeout_at(deadline, call).await.map_err(late).flatten();
        let has_failed = result.as_ref().is_err_and(counts_for_breaker);
        self.breaker().ended(has_failed, Instant::now());
        result
    }

    fn breaker(&self) -> std::sync::MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;

    use super::*;

    fn gate(concurrency: u32, queue: u32) -> Arc<Gate> {
        let limits =
            LimitsConfig { concurrency, queue, timeout_s: 5, breaker_failures: 2, ..Default::default() };
        Arc::new(Gate::new(limits))
    }

    fn code(result: Result<(), CallFailure>) -> Option<u16> {
        match result {
            Err(CallFailure::Unanswered { status, .. }) => Some(status),
            _ => None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_beyond_the_queue_fail_at_once_and_others_at_their_deadline() {
        let gate = gate(1, 1);
        let waiting = |gate: Arc<Gate>| tokio::spawn(async move { gate.run("t", pending()).await });
        let (first, second) = (waiting(gate.clone()), waiting(gate.clone()));
        tokio::task::yield_now().await;
        let begun = Instant::now();
        assert_eq!(code(gate.run("t", async { Ok(()) }).await), Some(429));
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(code(first.await.expect("a task")), Some(504));
        assert_eq!(code(second.await.expect("a task")), Some(504));
        assert_eq!(begun.elapsed(), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_call_gives_its_place_back() {
        let gate = gate(1, 0);
        let call = tokio::time::timeout(Duration::from_secs(1), gate.run("t", pending::<Result<(), _>>()));
        assert!(call.await.is_err());
        assert_eq!(gate.run("t", async { Ok(7) }).await, Ok(7));
    }

    #[tokio::test(start_paused = true)]
    async fn a_tool_that_fails_rests_and_one_that_refuses_does_not() {
        let gate = gate(1, 0);
        for _ in 0..3 {
            let refused = async { Err(CallFailure::unanswered(404, "unknown")) };
            assert_eq!(code(gate.run("t", refused).await), Some(404));
        }
        for _ in 0..2 {
            let broken = async { Err(CallFailure::unanswered(502, "broken")) };
            assert_eq!(code(gate.run("t", broken).await), Some(502));
        }
        assert_eq!(code(gate.run("t", async { Ok(()) }).await), Some(503));
    }
}
