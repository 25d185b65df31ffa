//! One attempt of a request at one replica. However it ends, its load is given back once. Does not know what
//! was asked.

use std::sync::Arc;
use std::time::Duration;

use throng_core::routing::{Choice, ReplicaId, Ticket};
use throng_core::time::Nanos;
use tokio::time::Instant;

use super::Dispatcher;

/// A delay that was predicted exactly counts as this; so prompts of any length can be compared.
const PREDICTED: Nanos = Nanos::from_ms(100);

/// One attempt; dropping it ends it. If nothing was said before, it says nothing about its replica.
#[derive(Debug)]
pub struct Placement {
    dispatcher: Arc<Dispatcher>,
    choice: Choice,
    /// Taken when the attempt ends.
    ticket: Option<Ticket>,
    began: Instant,
    has_answered: bool,
    is_judged: bool,
    was_ready: bool,
}

impl Placement {
    /// `was_ready`: the replica is fit for requests, and not only asked because too few are.
    pub(super) fn new(dispatcher: Arc<Dispatcher>, choice: Choice, ticket: Ticket, was_ready: bool) -> Self {
        Self {
            dispatcher,
            choice,
            ticket: Some(ticket),
            began: Instant::now(),
            has_answered: false,
            is_judged: true,
            was_ready,
        }
    }

    /// Whether how it ends says something about its replica.
    pub fn judged(mut self, is_judged: bool) -> Self {
        self.is_judged = is_judged;
        self
    }

    /// The replica that it goes to.
    pub fn replica(&self) -> ReplicaId {
        self.choice.replica
    }

    /// Whether its replica was fit for requests when it began.
    pub fn was_ready(&self) -> bool {
        self.was_ready
    }

    /// The first token has come; later ones change nothing.
    pub fn token(&mut self) {
        if std::mem::replace(&mut self.has_answered, true) {
            return;
        }
        let delay = relative(self.began.elapsed(), self.choice.usual_ttft);
        let (mut inner, now) = self.dispatcher.lock();
        if self.is_judged {
            inner.board.succeed(self.choice.replica, Some(delay), now);
        }
        if let Some(ticket) = &mut self.ticket {
            inner.router.first_token(ticket);
        }
    }

    /// Notes that it failed for a reason that is the replica's.
    pub fn failed(self) {
        if self.is_judged {
            let (mut inner, now) = self.dispatcher.lock();
            inner.board.fail(self.choice.replica, now);
        }
    }
}

impl Drop for Placement {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let (mut inner, _) = self.dispatcher.lock();
            inner.router.end(ticket);
            // Nothing is kept of replicas that come and go.
            if let Some(n) = inner.n_running.get_mut(&self.choice.replica) {
                *n -= 1;
                if *n == 0 {
                    inner.n_running.remove(&self.choice.replica);
                }
            }
        }
    }
}

/// Delay in parts of the predicted one.
fn relative(took: Duration, predicted: Nanos) -> Nanos {
    let scale = PREDICTED.0 as f64 / predicted.0.max(1) as f64;
    Nanos((took.as_nanos() as f64 * scale) as u64)
}
