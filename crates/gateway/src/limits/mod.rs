//! Enforcement of the limits of keys, users, projects and organisations: each request is charged before it
//! runs, and its unused part is returned at its end. Adds the clock and the lock to
//! `throng_core::fleet::limits`. Does not count tokens.

mod headers;
mod scopes;
mod shared;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use throng_core::fleet::limits::shared::{LeaseReply, LeaseRequest};
use throng_core::fleet::limits::{
    BudgetRefusal, Denied, LimitKind, LimitRefusal, LimitState, Reservation, Scope, Status,
};
use throng_core::time::{Nanos, Timestamp};
use throng_store::{Cost, MAX_KEYS, Outcome};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

use throng_api::{ApiError, SpentBudget};
use throng_auth::Tenant;
use throng_http::retry_after::retry_after_s;
use throng_metering::ledger::{Ledger, Meter, Uncounted};
use throng_metering::metrics::SharingStats;

pub(crate) use headers::insert_headers;
pub(crate) use scopes::budget_scopes;
use shared::RedisWatch;
pub use shared::SharedLimits;

/// Maximum number of scopes in use: all keys, and as many projects, organisations and users.
const MAX_SCOPES: usize = 2 * MAX_KEYS;

/// Longest wait of a request for a share of a limit that other gateways have.
const PATIENCE: Duration = Duration::from_millis(250);

/// Usage of all limits.
#[derive(Debug)]
pub(crate) struct RateLimits {
    state: Mutex<LimitState>,
    origin: Instant,
    /// Notified when a request waits for a larger share.
    wanted: Notify,
    /// Number of questions to Redis.
    n_asked: watch::Sender<u64>,
    /// Whether Redis answers.
    redis: RedisWatch,
}

/// Outcome of charging a request.
#[derive(Debug)]
pub(crate) struct Charged {
    /// Remaining limits after the charge.
    pub status: Status,
    /// The charge, or the refusal.
    pub charge: Result<Charge, LimitRefusal>,
}

/// Charge of a request. Dropping it returns the unused part, or all of it if the request has not begun.
#[derive(Debug, Default)]
pub(crate) struct Charge {
    /// Reservation; `None` if no limit applies.
    reserved: Option<(Arc<RateLimits>, Reservation)>,
    n_used: Option<u64>,
    /// Counter for the ledger; `None` without a ledger.
    meter: Option<Meter>,
}

impl RateLimits {
    /// Creates limits without usage. With `n_gateways`, they are shared with other gateways, whose number is
    /// assumed to be this one.
    pub fn new(n_gateways: Option<u64>) -> Self {
        let state = Mutex::new(LimitState::new(MAX_SCOPES, n_gateways));
        let (wanted, n_asked, redis) = (Notify::new(), watch::Sender::new(0), RedisWatch::default());
        Self { state, origin: Instant::now(), wanted, n_asked, redis }
    }

    /// Charges a caller for a request that uses at most `n_tokens` tokens. If limits are shared, waits for
    /// a share of other gateways, for a bounded time.
    pub async fn charge(self: &Arc<Self>, tenant: &Tenant, user: Option<&str>, n_tokens: u64) -> Charged {
        let scopes = scopes::scopes(tenant, user);
        if scopes.is_empty() {
            return Charged { status: Status::default(), charge: Ok(Charge::default()) };
        }
        let deadline = Instant::now() + PATIENCE;
        let mut asked = self.n_asked.subscribe();
        loop {
            let (reserved, status) = self.reserve(&scopes, n_tokens);
            let charge = match reserved {
                Ok(reservation) => {
                    Ok(Charge { reserved: Some((self.clone(), reservation)), n_used: None, meter: None })
                }
                Err(Denied::Refused(refusal)) => Err(refusal),
                Err(Denied::AskOthers(refusal)) => {
                    self.wanted.notify_one();
                    if matches!(timeout_at(deadline, asked.changed()).await, Ok(Ok(()))) {
                        continue;
                    }
                    Err(refusal)
                }
            };
            return Charged { status, charge };
        }
    }

    fn reserve(&self, scopes: &[Scope], n_tokens: u64) -> (Result<Reservation, Denied>, Status) {
        let mut state = self.state();
        let now = self.now();
        let reserved = state.reserve(scopes, n_tokens, now);
        let status = state.status(scopes, now);
        (reserved, status)
    }

    fn state(&self) -> MutexGuard<'_, LimitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_ns(Nanos::from(self.origin.elapsed()).0)
    }

    /// Next question to Redis; `None` if limits are not shared.
    fn question(&self) -> Option<LeaseRequest> {
        self.state().shared().map(|leases| leases.ask(self.now()))
    }

    /// Time of the last query to Redis.
    fn last_question(&self) -> Option<LeaseRequest> {
        self.state().shared().map(|leases| leases.ask_last(self.now()))
    }

    /// Notes the answer of Redis, or its absence.
    fn answered(&self, ask: &LeaseRequest, told: Option<&LeaseReply>) {
        if let Some(leases) = self.state().shared() {
            match told {
                Some(told) => leases.told(ask, told, self.now()),
                None => leases.not_told(),
            }
        }
        self.n_asked.send_modify(|n| *n += 1);
    }

    /// State of the sharing of limits; `None` if they are not shared.
    pub fn sharing(&self) -> Option<SharingStats> {
        let (n_gateways, n_leases) = self.state().shared().map(|leases| leases.standing())?;
        Some(SharingStats { redis: self.redis.state(), n_gateways, n_leases })
    }

    /// Waits until a request needs a larger share.
    async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Whether the last question was too small for all due scopes.
    fn has_more_to_say(&self) -> bool {
        self.state().shared().is_some_and(|leases| leases.has_more())
    }
}

impl Charge {
    /// Adds the counter for the ledger.
    pub fn with_meter(mut self, meter: Option<Meter>) -> Self {
        self.meter = meter;
        self
    }

    /// Whether usage is counted.
    pub fn is_counted(&self) -> bool {
        self.reserved.is_some() || self.meter.is_some()
    }

    /// Notes that a prompt of the request has reached an engine, from which on it counts.
    pub fn begin(&mut self, n_prompt_tokens: u64) {
        self.add(n_prompt_tokens);
        self.meter.iter_mut().for_each(Meter::begin);
    }

    fn add(&mut self, n_tokens: u64) {
        self.n_used = Some(self.n_used.unwrap_or(0).saturating_add(n_tokens));
    }

    /// Notes that a prompt was computed or found in the cache.
    pub fn prompt(&mut self, n_tokens: u64, n_cached: u64) {
        self.meter.iter_mut().for_each(|meter| meter.prompt(n_tokens, n_cached));
    }

    /// Notes a token of an answer.
    pub fn token(&mut self) {
        self.meter.iter_mut().for_each(Meter::token);
    }

    /// Notes that an answer with `n_seen` received tokens has ended with `n_tokens`.
    pub fn answer_ended(&mut self, n_tokens: u64, n_seen: u64) {
        self.add(n_tokens);
        self.meter.iter_mut().for_each(|meter| meter.answer_ended(n_tokens, n_seen));
    }

    /// Notes that the request will generate no more tokens.
    pub fn end(&mut self, outcome: Outcome) {
        self.meter.iter_mut().for_each(|meter| meter.end(outcome));
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let Some((limits, reservation)) = self.reserved.take() else { return };
        let mut state = limits.state();
        match self.n_used {
            Some(n_used) => state.settle(reservation, n_used, limits.now()),
            None => state.cancel(reservation),
        }
    }
}

/// Name of a refusal in metrics.
pub(crate) fn refusal_name(refusal: &LimitRefusal) -> &'static str {
    match refusal {
        LimitRefusal::Exceeded { kind, .. } | LimitRefusal::NeverFits { kind, .. } => match kind {
            LimitKind::Requests => "requests_per_minute",
            LimitKind::Tokens => "tokens_per_minute",
            LimitKind::ConcurrentRequests => "concurrent_requests",
        },
        LimitRefusal::TooManyScopes => "too_many_limited_keys",
    }
}

/// Error for the client from a refusal.
pub(crate) fn limit_error(refusal: &LimitRefusal) -> ApiError {
    let unit = |kind| match kind {
        LimitKind::Requests => "requests per minute",
        LimitKind::Tokens => "tokens per minute",
        LimitKind::ConcurrentRequests => "concurrent requests",
    };
    match *refusal {
        LimitRefusal::Exceeded { kind, limit, wait } => {
            let seconds = |wait: Nanos| u32::try_from(wait.0.div_ceil(1_000_000_000)).unwrap_or(u32::MAX);
            let seconds = wait.map_or_else(retry_after_s, seconds);
            let what = format!("this API key, its user, project or organisation has {limit} {}", unit(kind));
            ApiError::rate_limit_exceeded(&what, seconds)
        }
        LimitRefusal::NeverFits { kind, limit, needed } => {
            ApiError::request_exceeds_rate_limit(unit(kind), limit, needed)
        }
        LimitRefusal::TooManyScopes => {
            ApiError::overloaded("Too many API keys with limits are in use.", retry_after_s())
        }
    }
}

/// Error for a refusal by a budget, whose scopes are those of [`budget_scopes`].
fn budget_error(refusal: BudgetRefusal, resets: &str) -> ApiError {
    let amount = |amount: u128| match refusal.is_money {
        true => format!("${}", Cost(amount)),
        false => format!("{amount} tokens"),
    };
    ApiError::insufficient_quota(&SpentBudget {
        owner: ["this API key", "this API key's project", "this API key's organisation"]
            .get(refusal.scope)
            .copied()
            .unwrap_or("this API key"),
        limit: &format!("{} a {}", amount(refusal.limit), if refusal.is_daily { "day" } else { "month" }),
        used: &amount(refusal.spent),
        reserved: &amount(refusal.reserved),
        needed: &amount(refusal.needed),
        resets,
    })
}

/// Name in metrics of a refusal by a budget.
pub(crate) fn uncounted_name(refusal: Uncounted) -> &'static str {
    let Uncounted::Budget(refusal) = refusal else { return "ledger_unavailable" };
    match (refusal.is_daily, refusal.is_money) {
        (true, true) => "cost_per_day",
        (true, false) => "tokens_per_day",
        (false, true) => "cost_per_month",
        (false, false) => "tokens_per_month",
    }
}

/// Error for a request that the ledger refused.
pub(crate) fn uncounted_error(refusal: Uncounted, ledger: &Ledger) -> ApiError {
    match refusal {
        Uncounted::Budget(refusal) => budget_error(refusal, &ledger.reset_date(refusal.is_daily)),
        Uncounted::NoRoom => ApiError::ledger_unavailable(retry_after_s()),
    }
}
