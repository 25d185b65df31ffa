//! One request's view of a shared generation, with events as if the generation were its own. Does not know
//! the other readers.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::Stream;
use throng_core::request::FinishReason;
use throng_fleet::replica::{Generation, ReplicaError, ReplicaEvent, Timing, TraceSource};
use tokio::time::Instant;

use super::Kept;
use super::key::CacheKey;
use super::shared_generation::{SharedGeneration, Step};

/// A reader of a shared generation.
#[derive(Debug)]
pub(super) struct Reader {
    shared: Arc<SharedGeneration>,
    id: u64,
    /// Cache that keeps the complete answer, and its key.
    kept: Arc<Kept>,
    key: CacheKey,
    /// Time from the start of the generation to the arrival of this reader.
    delay: Duration,
    joined: Instant,
    continuations: Vec<Progress>,
    /// Ends of continuations that the generation does not report, because others still read them.
    own_ends: VecDeque<ReplicaEvent>,
    has_failed: bool,
}

#[derive(Debug, Clone, Default)]
struct Progress {
    n_tokens: u32,
    has_ended: bool,
}

impl Reader {
    /// Creates the reader with this number of a generation with `n` continuations that began at `begun`.
    pub fn new(
        shared: Arc<SharedGeneration>,
        id: u64,
        n: u32,
        begun: Instant,
        kept: Arc<Kept>,
        key: CacheKey,
    ) -> Self {
        let joined = Instant::now();
        Self {
            shared,
            id,
            kept,
            key,
            delay: joined - begun,
            joined,
            continuations: vec![Progress::default(); n as usize],
            own_ends: VecDeque::new(),
            has_failed: false,
        }
    }

    /// Waits until a replica has accepted the request.
    ///
    /// # Errors
    /// When no replica accepts it.
    pub async fn started(self) -> Result<Self, ReplicaError> {
        std::future::poll_fn(|cx| self.shared.poll_started(self.id, cx)).await?;
        Ok(self)
    }

    fn progress(&mut self, index: u32) -> Option<&mut Progress> {
        self.continuations.get_mut(index as usize).filter(|continuation| !continuation.has_ended)
    }

    /// Translates an event for this reader; `None` if the reader does not need it.
    fn told(&mut self, event: ReplicaEvent) -> Option<ReplicaEvent> {
        match event {
            ReplicaEvent::Prompt { .. } => Some(event),
            ReplicaEvent::Token { index, .. } => {
                self.progress(index)?.n_tokens += 1;
                Some(event)
            }
            ReplicaEvent::Finished { index, reason, timing } => {
                let timing = timing.shifted_earlier(self.delay);
                self.progress(index)?.has_ended = true;
                Some(ReplicaEvent::Finished { index, reason, timing })
            }
            ReplicaEvent::Failed { .. } => {
                self.has_failed = true;
                Some(event)
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.has_failed || self.continuations.iter().all(|continuation| continuation.has_ended)
    }
}

impl Stream for Reader {
    type Item = ReplicaEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ReplicaEvent>> {
        loop {
            if let Some(end) = self.own_ends.pop_front() {
                return Poll::Ready(Some(end));
            }
            if self.has_ended() {
                return Poll::Ready(None);
            }
            let Step { event, whole } = ready!(self.shared.poll_next(self.id, cx));
            if let Some(events) = whole {
                self.kept.keep(&self.key, events);
            }
            let Some(event) = event else { return Poll::Ready(None) };
            if let Some(event) = self.told(event) {
                return Poll::Ready(Some(event));
            }
        }
    }
}

impl Generation for Reader {
    fn abort_continuation(&mut self, index: u32) {
        let (shared, id, joined) = (self.shared.clone(), self.id, self.joined);
        let Some(continuation) = self.progress(index) else { return };
        if shared.abandon(id, index) {
            return;
        }
        continuation.has_ended = true;
        let timing = Timing { end: joined.elapsed(), n_output: continuation.n_tokens, ..Timing::default() };
        self.own_ends.push_back(ReplicaEvent::Finished { index, reason: FinishReason::Abort, timing });
    }

    fn trace(&self) -> Option<Arc<dyn TraceSource>> {
        self.shared.trace()
    }

    fn stop_continuation(&mut self, index: u32) {
        self.shared.stop(index);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.leave(self.id);
    }
}
