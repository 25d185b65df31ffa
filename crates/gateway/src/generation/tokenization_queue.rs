//! Queue for parsing, rendering and tokenizing: bounds how many prompts are processed at a time and how
//! many wait. Tenants take turns, so that one with many requests does not delay the others. Does not know
//! the work.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use throng_core::request::TenantId;
use tokio::sync::oneshot;

/// Bytes of a body above which a request waits in a queue of its own, which has half of the places, so that
/// many long prompts do not delay short ones.
pub(crate) const LONG_BYTES: usize = 64 << 10;

/// Places for processing, in two lines: one for short bodies, one for long ones.
#[derive(Debug)]
pub(crate) struct TokenizationQueue {
    short: Arc<Line>,
    long: Arc<Line>,
}

/// Reason why a request gets no turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoTurn {
    /// Too many requests wait already.
    Full,
    /// The request did not get its turn in time.
    TimedOut,
}

impl TokenizationQueue {
    /// Creates a queue with `n_places` places, at least one in each line. In each, `max_waiting` requests
    /// may wait, for at most `patience`.
    pub fn new(n_places: usize, max_waiting: usize, patience: Duration) -> Self {
        let n_long = (n_places / 2).max(1);
        let n_short = n_places.saturating_sub(n_long).max(1);
        let line = |n_free| {
            let state = Mutex::new(State { n_free, ..State::default() });
            Arc::new(Line { state, max_waiting, patience })
        };
        Self { short: line(n_short), long: line(n_long) }
    }

    /// Waits for a turn to process `n_bytes` bytes of body.
    ///
    /// # Errors
    /// [`NoTurn`], at once if too many wait.
    pub async fn take(&self, tenant: &TenantId, n_bytes: usize) -> Result<Turn, NoTurn> {
        if n_bytes > LONG_BYTES { self.long.take(tenant).await } else { self.short.take(tenant).await }
    }
}

#[derive(Debug)]
struct Line {
    state: Mutex<State>,
    max_waiting: usize,
    patience: Duration,
}

#[derive(Debug, Default)]
struct State {
    n_free: usize,
    next_id: u64,
    n_waiting: usize,
    /// Waiting requests by tenant, in order of arrival. No list is empty.
    waiting: BTreeMap<TenantId, VecDeque<Waiting>>,
    /// Tenants in `waiting`, in the order of their turns.
    order: VecDeque<TenantId>,
}

#[derive(Debug)]
struct Waiting {
    id: u64,
    turn: oneshot::Sender<Turn>,
}

/// A turn, which occupies a place until it is dropped. It must be moved to the thread that does the work.
#[derive(Debug)]
pub(crate) struct Turn {
    line: Arc<Line>,
}

impl Line {
    async fn take(self: &Arc<Self>, tenant: &TenantId) -> Result<Turn, NoTurn> {
        let (id, turn) = {
            let mut state = self.lock();
            if state.n_free > 0 {
                state.n_free -= 1;
                return Ok(Turn { line: self.clone() });
            }
            if state.n_waiting >= self.max_waiting {
                return Err(NoTurn::Full);
            }
            state.wait(tenant)
        };
        let _leaves = LeavesLine { line: self, tenant, id };
        match tokio::time::timeout(self.patience, turn).await {
            Ok(Ok(turn)) => Ok(turn),
            Ok(Err(_)) | Err(_) => Err(NoTurn::TimedOut),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wait(&mut self, tenant: &TenantId) -> (u64, oneshot::Receiver<Turn>) {
        let (turn, receiver) = oneshot::channel();
        let id = self.next_id;
        self.next_id += 1;
        self.n_waiting += 1;
        if !self.waiting.contains_key(tenant) {
            self.order.push_back(tenant.clone());
        }
        self.waiting.entry(tenant.clone()).or_default().push_back(Waiting { id, turn });
        (id, receiver)
    }

    /// Takes the next request: the first of the tenant that has waited longest for a turn.
    fn next(&mut self) -> Option<Waiting> {
        let tenant = self.order.pop_front()?;
        let line = self.waiting.get_mut(&tenant)?;
        let first = line.pop_front();
        if line.is_empty() {
            self.waiting.remove(&tenant);
        } else {
            self.order.push_back(tenant);
        }
        self.n_waiting -= usize::from(first.is_some());
        first
    }

    fn leave(&mut self, tenant: &TenantId, id: u64) {
        let Some(line) = self.waiting.get_mut(tenant) else { return };
        let n_before = line.len();
        line.retain(|waiting| waiting.id != id);
        self.n_waiting -= n_before - line.len();
        if line.is_empty() {
            self.waiting.remove(tenant);
            self.order.retain(|known| known != tenant);
        }
    }
}

/// Removes a request that stops waiting from the line, unless it has had its turn.
struct LeavesLine<'a> {
    line: &'a Line,
    tenant: &'a TenantId,
    id: u64,
}

impl Drop for LeavesLine<'_> {
    fn drop(&mut self) {
        self.line.lock().leave(self.tenant, self.id);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.line.lock();
        let Some(next) = state.next() else {
            state.n_free += 1;
            return;
        };
        drop(state);
        // One who left in this moment drops the turn, which passes it on.
        let _ = next.turn.send(Turn { line: self.line.clone() });
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId(Arc::from(name))
    }

    fn turns(n_places: usize, max_waiting: usize) -> TokenizationQueue {
        TokenizationQueue::new(n_places, max_waiting, Duration::from_secs(3600))
    }

    #[tokio::test]
    async fn tenants_take_turns_and_no_more_wait_than_may() {
        let turns = turns(1, 4);
        let (greedy, modest) = (tenant("greedy"), tenant("modest"));
        let held = turns.take(&greedy, 1).await.expect("a free place");
        let mut first = Box::pin(turns.take(&greedy, 1));
        let mut second = Box::pin(turns.take(&greedy, 1));
        let mut third = Box::pin(turns.take(&greedy, 1));
        let mut other = Box::pin(turns.take(&modest, 1));
        for waiting in [&mut first, &mut second, &mut third, &mut other] {
            assert!(waiting.now_or_never().is_none());
        }
        assert_eq!(turns.take(&modest, 1).await.map(drop), Err(NoTurn::Full));
        let long = turns.take(&modest, LONG_BYTES + 1).await.expect("a line of its own");
        drop((held, long));
        let held = (&mut first).now_or_never().expect("its turn").expect("a turn");
        assert!((&mut other).now_or_never().is_none());
        drop(held);
        assert!((&mut second).now_or_never().is_none());
        let held = (&mut other).now_or_never().expect("the other tenant is next").expect("a turn");
        drop(second);
        drop(held);
        drop(third.now_or_never().expect("the second has left the line").expect("a turn"));
        drop(turns.take(&modest, 1).now_or_never().expect("a free place").expect("a turn"));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever_and_who_leaves_gives_the_turn_on() {
        let turns = turns(2, 4);
        let anyone = TenantId::anonymous();
        let held = turns.take(&anyone, 1).await.expect("a free place");
        assert_eq!(turns.take(&anyone, 1).await.map(drop), Err(NoTurn::TimedOut));
        let mut given = Box::pin(turns.take(&anyone, 1));
        assert!((&mut given).now_or_never().is_none());
        drop(held);
        drop(given);
        assert!(turns.take(&anyone, 1).now_or_never().is_some());
    }
}
