//! Places the attempts of a model's requests, with the router, the health board and the retry budget. Does
//! not know how a replica is reached.

use std::collections::BTreeMap;

use crate::fleet::health::{Board, HealthConfig, RetryBudget, State};
use crate::fleet::routing::{Choice, PrefixIndex, Query, Region, ReplicaId, Router, Ticket};
use crate::scheduling::block_hash::BlockKey;
use crate::time::{Nanos, Timestamp};

/// Number of retries that a model may use before its first request, and maximum number that it may save up.
const RESERVED_RETRIES: u32 = 10;
const MAX_SAVED_RETRIES: u32 = 100;
/// Maximum number of block names kept for the cache of one replica.
const MAX_BLOCKS: usize = 1 << 16;
/// Delay of an attempt whose prediction was exact: delays are scaled to this, so that prompts of any length
/// can be compared.
const PREDICTED: Nanos = Nanos::from_ms(100);

/// The replicas of a model, with the state that choices among them depend on.
#[derive(Debug)]
pub struct Dispatch {
    /// Router that chooses among replicas.
    pub router: Router,
    /// Tells which replicas are fit for requests.
    pub board: Board,
    budget: RetryBudget,
    /// Number of running attempts of each replica.
    n_running: BTreeMap<ReplicaId, usize>,
}

/// Facts of a request that a choice depends on.
#[derive(Debug, Clone, Copy)]
pub struct Demand<'a> {
    /// Number of tokens of the prompt, with those already generated.
    pub n_tokens: u32,
    /// The names of its full blocks, in their order.
    pub blocks: &'a [BlockKey],
    /// The name of the requests that begin alike, as the client says.
    pub session: Option<BlockKey>,
    /// The name of the only replica that the client wants.
    pub pinned: Option<&'a str>,
    /// The regions that a residency rule binds it to.
    pub regions: Option<&'a [Region]>,
    /// Replicas that were tried and are not tried again.
    pub tried: &'a [ReplicaId],
}

/// An attempt that begins, to be ended by [`Dispatch::end`].
#[derive(Debug)]
pub struct Attempt {
    /// The replica, and the predictions for it.
    pub choice: Choice,
    /// Whether the replica was fit for requests; otherwise it was chosen because too few are.
    pub was_ready: bool,
    ticket: Ticket,
}

impl Dispatch {
    /// Creates the dispatch without replicas.
    pub fn new(router: Router, health: HealthConfig) -> Self {
        let budget = RetryBudget::new(RESERVED_RETRIES, MAX_SAVED_RETRIES);
        Self { router, board: Board::new(health), budget, n_running: BTreeMap::new() }
    }

    /// Adds a replica, which is starting.
    pub fn add(&mut self, name: &str, now: Timestamp) -> ReplicaId {
        let id = self.router.add(name, PrefixIndex::Inferred, MAX_BLOCKS);
        self.board.add(id, now);
        id
    }

    /// Removes a replica. Attempts that run on it still return their load.
    pub fn remove(&mut self, id: ReplicaId) {
        self.router.remove(id);
        self.board.remove(id);
    }

    /// Notes a new request, which pays for its first attempt.
    pub fn request(&mut self) {
        self.budget.request();
    }

    /// Whether one more attempt is within the budget, which it is then charged to.
    #[must_use]
    pub fn may_retry(&mut self) -> bool {
        self.budget.retry()
    }

    /// Chooses a replica for the next attempt; `None` if none may be used. A repeated attempt goes to a
    /// replica that is fit for requests, if there is any, also while most are not.
    pub fn place(&mut self, demand: &Demand<'_>, now: Timestamp) -> Option<Attempt> {
        let ready = if demand.tried.is_empty() { self.board.ready() } else { Vec::new() };
        let first = if ready.is_empty() { None } else { self.place_among(demand, &ready, now) };
        first.or_else(|| {
            let eligible = self.board.eligible();
            self.place_among(demand, &eligible, now)
        })
    }

    /// Chooses a replica for the next attempt among those in `answering`: one that is fit for requests,
    /// else any of them.
    pub fn place_answering(
        &mut self,
        demand: &Demand<'_>,
        answering: &[ReplicaId],
        now: Timestamp,
    ) -> Option<Attempt> {
        let mut eligible = self.board.eligible();
        let mut sorted = answering.to_vec();
        sorted.sort_unstable();
        eligible.retain(|id| sorted.binary_search(id).is_ok());
        self.place_among(demand, &eligible, now).or_else(|| self.place_among(demand, answering, now))
    }

    /// Chooses a replica for the next attempt among these, fit or not.
    pub fn place_among(
        &mut self,
        demand: &Demand<'_>,
        eligible: &[ReplicaId],
        now: Timestamp,
    ) -> Option<Attempt> {
        let eligible: Vec<_> = eligible.iter().copied().filter(|id| !demand.tried.contains(id)).collect();
        let pinned = match demand.pinned {
            // A name that no replica has leads nowhere.
            Some(name) => Some(self.router.named(name)?),
            None => None,
        };
        let Demand { n_tokens, blocks, session, regions, .. } = *demand;
        let query = Query { n_tokens, blocks, session, pinned, eligible: &eligible, regions };
        let choice = self.router.choose(&query, now)?;
        let ticket = self.router.start(&choice, &query);
        *self.n_running.entry(choice.replica).or_default() += 1;
        let was_ready = self.board.state(choice.replica) == Some(State::Ready);
        Some(Attempt { choice, was_ready, ticket })
    }

    /// Notes the first token of an attempt, `took` after its beginning; the replica is judged by it if
    /// `is_judged`.
    pub fn first_token(&mut self, attempt: &mut Attempt, took: Nanos, is_judged: bool, now: Timestamp) {
        if is_judged {
            // The time of a prompt that another replica has computed says nothing about this one.
            let is_own = attempt.choice.prefill().is_none();
            let delay = is_own.then(|| relative(took, attempt.choice.usual_ttft));
            self.board.succeed(attempt.choice.replica, delay, now);
        }
        self.router.first_token(&mut attempt.ticket);
    }

    /// Ends an attempt and takes its load off the replica.
    pub fn end(&mut self, attempt: Attempt) {
        self.router.end(attempt.ticket);
        // Nothing is kept of replicas that come and go.
        if let Some(n) = self.n_running.get_mut(&attempt.choice.replica) {
            *n -= 1;
            if *n == 0 {
                self.n_running.remove(&attempt.choice.replica);
            }
        }
    }

    /// Number of attempts that run at a replica.
    pub fn n_running(&self, id: ReplicaId) -> usize {
        self.n_running.get(&id).copied().unwrap_or(0)
    }

    /// Whether no replica may be used now, but a new one may soon become ready.
    pub fn is_about_to_start(&self, now: Timestamp) -> bool {
        self.board.eligible().is_empty() && self.board.is_about_to_start(now)
    }
}

/// Delay as a share of the predicted one.
fn relative(took: Nanos, predicted: Nanos) -> Nanos {
    let scale = PREDICTED.0 as f64 / predicted.0.max(1) as f64;
    Nanos((took.0 as f64 * scale) as u64)
}
