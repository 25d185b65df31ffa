//! Timeouts that count only the time in which this process ran. After a process was stopped, moved to
//! another machine or throttled, its timers have expired while its sockets are full: the sockets must be
//! read before a timeout takes effect. Does not know the purpose of a timeout.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant as StdInstant};

use tokio::time::{Instant, Sleep};

/// Number of parts that a timeout is divided into; a pause of the process prolongs one of them.
const N_PARTS: u32 = 8;
/// Maximum length of a part.
const MAX_PART: Duration = Duration::from_secs(1);
/// Minimum length of a part.
const MIN_PART: Duration = Duration::from_millis(10);
/// Lateness of a timer beyond which the process counts as paused, so that the part is repeated.
const MAX_LATENESS: Duration = Duration::from_millis(100);
/// Maximum number of repeated parts of a timeout: on a machine whose timers are always late, timeouts still
/// take effect.
const MAX_FORGIVEN: u32 = 16;

/// Completes after a duration in which the process ran.
#[derive(Debug)]
pub struct AwakeSleep {
    part: Duration,
    n_parts: u32,
    n_left: u32,
    n_forgiven: u32,
    timer: Pin<Box<Sleep>>,
}

/// Error of a timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Late;

impl AwakeSleep {
    /// Creates a timer that completes after `limit`.
    pub fn new(limit: Duration) -> Self {
        let part = (limit / N_PARTS).clamp(MIN_PART, MAX_PART).min(limit);
        let n_parts = limit.as_nanos().div_ceil(part.as_nanos().max(1));
        let n_parts = u32::try_from(n_parts).unwrap_or(u32::MAX).max(1);
        Self { part, n_parts, n_left: n_parts, n_forgiven: 0, timer: Box::pin(tokio::time::sleep(part)) }
    }

    /// Restarts the timer cheaply: the whole limit starts after the current part.
    pub fn restart(&mut self) {
        (self.n_left, self.n_forgiven) = (self.n_parts.saturating_add(1), 0);
    }
}

impl Future for AwakeSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        while this.n_left > 0 {
            ready!(this.timer.as_mut().poll(cx));
            let now = Instant::now();
            let is_late = now.saturating_duration_since(this.timer.deadline()) > MAX_LATENESS;
            if is_late && this.n_forgiven < MAX_FORGIVEN {
                this.n_forgiven += 1;
            } else {
                this.n_left -= 1;
            }
            if this.n_left > 0 {
                this.timer.as_mut().reset(now + this.part);
            }
        }
        Poll::Ready(())
    }
}

/// The result of `work`, if it is ready within `limit` of time in which the process ran.
///
/// # Errors
/// [`Late`] if it is not.
pub async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Result<T, Late> {
    // Most work is ready at once and needs no timer.
    let (mut work, mut timer) = (pin!(work), None::<AwakeSleep>);
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(result) => Poll::Ready(Ok(result)),
        Poll::Pending => {
            let timer = timer.get_or_insert_with(|| AwakeSleep::new(limit));
            Pin::new(timer).poll(cx).map(|()| Err(Late))
        }
    })
    .await
}

/// hyper's timers, for pings: hyper checks them before it reads.
#[derive(Debug, Clone, Copy)]
pub struct AwakeTimer;

impl hyper::rt::Sleep for AwakeSleep {}

impl hyper::rt::Timer for AwakeTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(AwakeSleep::new(duration))
    }

    fn sleep_until(&self, deadline: StdInstant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        self.sleep(deadline.saturating_duration_since(self.now()))
    }

    fn now(&self) -> StdInstant {
        Instant::now().into_std()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_limit_is_as_long_as_it_says() {
        for limit in [0, 3, 25, 1_500, 10_000, 120_500].map(Duration::from_millis) {
            let began = Instant::now();
            AwakeSleep::new(limit).await;
            let took = began.elapsed();
            assert!(took >= limit && took <= limit + MAX_PART, "{took:?} for {limit:?}");
        }
        assert_eq!(within(Duration::from_secs(1), std::future::ready(7)).await, Ok(7));
        assert_eq!(within(Duration::from_secs(1), std::future::pending::<()>()).await, Err(Late));
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_the_process_did_not_run_does_not_count() {
        let limit = Duration::from_millis(1_500);
        for before in [0, 1_000, 1_450] {
            let mut sleep = pin!(AwakeSleep::new(limit));
            let is_over = |sleep: Pin<&mut AwakeSleep>| {
                sleep.poll(&mut Context::from_waker(std::task::Waker::noop())).is_ready()
            };
            for _ in 0..before / 10 {
                assert!(!is_over(sleep.as_mut()));
                tokio::time::advance(Duration::from_millis(10)).await;
            }
            // The situation after SIGCONT: all timers have expired, and nothing has been read.
            tokio::time::advance(Duration::from_secs(60)).await;
            assert!(!is_over(sleep.as_mut()), "after {before} ms and a pause");
            let resumed = Instant::now();
            sleep.await;
            assert!(resumed.elapsed() >= Duration::from_millis(150), "after {before} ms");
            assert!(resumed.elapsed() <= limit + MIN_PART * N_PARTS);
        }
    }
}
