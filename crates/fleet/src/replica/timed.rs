//! A generation with time limits: until its first token, between two tokens, and in all. Beyond a limit it
//! ends with an error and is aborted. Does not know whose limits they are.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{FutureExt, Stream, StreamExt};
use tokio::time::{Instant, Sleep, sleep_until};

use super::{Generation, ReplicaError, ReplicaErrorKind, ReplicaEvent, TraceSource};

/// Time limits of a generation; `None` for no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimeLimits {
    /// Time from the request's arrival to its first token.
    pub first_token: Option<Duration>,
    /// Time between two tokens.
    pub idle: Option<Duration>,
    /// Time from the request's arrival to its end.
    pub total: Option<Duration>,
}

impl TimeLimits {
    /// Applies these limits to a generation of a request that arrived at `arrived`.
    pub fn apply(self, generation: Box<dyn Generation>, arrived: Instant) -> Box<dyn Generation> {
        if self == Self::default() {
            return generation;
        }
        let generation = Some(generation);
        let mut timed = Timed { generation, limits: self, arrived, last_token: None, sleep: None };
        timed.set_alarm();
        Box::new(timed)
    }
}

#[derive(Debug)]
struct Timed {
    /// `None` once a limit was exceeded.
    generation: Option<Box<dyn Generation>>,
    limits: TimeLimits,
    arrived: Instant,
    last_token: Option<Instant>,
    /// `None` if no limit is pending.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timed {
    fn set_alarm(&mut self) {
        let Self { limits, arrived, last_token, .. } = *self;
        let next = match last_token {
            None => limits.first_token.map(|limit| arrived + limit),
            Some(last) => limits.idle.map(|limit| last + limit),
        };
        let due = next.into_iter().chain(limits.total.map(|limit| arrived + limit)).min();
        match (due, &mut self.sleep) {
            (Some(due), Some(sleep)) => sleep.as_mut().reset(due),
            (due, sleep) => *sleep = due.map(|due| Box::pin(sleep_until(due))),
        }
    }

    fn too_late(&mut self) -> ReplicaEvent {
        self.generation = None;
        let elapsed = self.arrived.elapsed();
        let message = format!("a limit of time was reached {elapsed:.0?} after the request");
        let error = ReplicaError { kind: ReplicaErrorKind::TimedOut, retryable: false, message };
        ReplicaEvent::Failed { error }
    }
}

impl Stream for Timed {
    type Item = ReplicaEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ReplicaEvent>> {
        let Some(generation) = &mut self.generation else { return Poll::Ready(None) };
        // What has come counts, however late its reader asks.
        if let Poll::Ready(event) = generation.poll_next_unpin(cx) {
            if let Some(ReplicaEvent::Token { .. }) = event {
                self.last_token = Some(Instant::now());
                self.set_alarm();
            }
            return Poll::Ready(event);
        }
        match self.sleep.as_mut().map(|sleep| sleep.poll_unpin(cx)) {
            Some(Poll::Ready(())) => Poll::Ready(Some(self.too_late())),
            Some(Poll::Pending) | None => Poll::Pending,
        }
    }
}

impl Generation for Timed {
    fn abort_continuation(&mut self, index: u32) {
        if let Some(generation) = &mut self.generation {
            generation.abort_continuation(index);
        }
    }

    fn stop_continuation(&mut self, index: u32) {
        if let Some(generation) = &mut self.generation {
            generation.stop_continuation(index);
        }
    }

    fn trace(&self) -> Option<Arc<dyn TraceSource>> {
        self.generation.as_ref()?.trace()
    }
}
