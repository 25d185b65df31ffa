//! An attempt of a request at one replica. It releases its load exactly once, however it ends. Does not know
//! what was requested.

use std::sync::Arc;

use throng_core::fleet::Attempt;
use throng_core::fleet::routing::{ReplicaId, SplitDecision};
use throng_core::time::Nanos;
use tokio::time::Instant;

use super::Dispatcher;

/// An attempt; dropping it ends the attempt. Without an earlier call its end does not affect the replica's
/// health.
#[derive(Debug)]
pub struct Placement {
    dispatcher: Arc<Dispatcher>,
    replica: ReplicaId,
    was_ready: bool,
    /// Taken when the attempt ends.
    attempt: Option<Attempt>,
    began: Instant,
    has_answered: bool,
    is_judged: bool,
}

impl Placement {
    /// Starts an attempt.
    pub(super) fn new(dispatcher: Arc<Dispatcher>, attempt: Attempt) -> Self {
        let (replica, was_ready) = (attempt.choice.replica, attempt.was_ready);
        let (began, attempt) = (Instant::now(), Some(attempt));
        Self { dispatcher, replica, was_ready, attempt, began, has_answered: false, is_judged: true }
    }

    /// Sets whether the outcome counts for the replica's health.
    pub fn judged(mut self, is_judged: bool) -> Self {
        self.is_judged = is_judged;
        self
    }

    /// The replica of the attempt.
    pub fn replica(&self) -> ReplicaId {
        self.replica
    }

    /// Another replica that has more of the prompt in its cache, and its number of blocks.
    pub fn holder(&self) -> Option<(ReplicaId, u32)> {
        self.attempt.as_ref()?.choice.holder
    }

    /// Whether another replica computes the prompt first, and why; `None` where replicas have no roles.
    pub fn split(&self) -> Option<SplitDecision> {
        self.attempt.as_ref()?.choice.split
    }

    /// Number of prompt tokens that the replica is assumed to have cached.
    pub fn n_cached_tokens(&self) -> u32 {
        self.attempt.as_ref().map_or(0, |attempt| attempt.choice.n_cached_tokens)
    }

    /// Whether the replica was ready when the attempt started, not just tried because too few were ready.
    pub fn was_ready(&self) -> bool {
        self.was_ready
    }

    /// Records the first token; later calls are ignored.
    pub fn token(&mut self) {
        if std::mem::replace(&mut self.has_answered, true) {
            return;
        }
        let took = Nanos::from(self.began.elapsed());
        let (mut inner, now) = self.dispatcher.lock();
        if let Some(attempt) = &mut self.attempt {
            inner.first_token(attempt, took, self.is_judged, now);
        }
    }

    /// Records a failure of the replica.
    pub fn failed(self) {
        if self.is_judged {
            let (mut inner, now) = self.dispatcher.lock();
            inner.board.fail(self.replica, now);
        }
    }
}

impl Drop for Placement {
    fn drop(&mut self) {
        if let Some(attempt) = self.attempt.take() {
            self.dispatcher.lock().0.end(attempt);
        }
    }
}
