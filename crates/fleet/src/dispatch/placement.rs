//! One attempt of a request at one replica. However it ends, its load is given back once. Does not know what
//! was asked.

use std::sync::Arc;

use throng_core::fleet::Attempt;
use throng_core::fleet::routing::ReplicaId;
use throng_core::time::Nanos;
use tokio::time::Instant;

use super::Dispatcher;

/// One attempt; dropping it ends it. If nothing was said before, it says nothing about its replica.
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
    /// An attempt that begins.
    pub(super) fn new(dispatcher: Arc<Dispatcher>, attempt: Attempt) -> Self {
        let (replica, was_ready) = (attempt.choice.replica, attempt.was_ready);
        let (began, attempt) = (Instant::now(), Some(attempt));
        Self { dispatcher, replica, was_ready, attempt, began, has_answered: false, is_judged: true }
    }

    /// Whether how it ends says something about its replica.
    pub fn judged(mut self, is_judged: bool) -> Self {
        self.is_judged = is_judged;
        self
    }

    /// The replica that it goes to.
    pub fn replica(&self) -> ReplicaId {
        self.replica
    }

    /// Whether its replica was fit for requests when it began, and not only asked because too few were.
    pub fn was_ready(&self) -> bool {
        self.was_ready
    }

    /// The first token has come; later ones change nothing.
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

    /// Notes that it failed for a reason that is the replica's.
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
