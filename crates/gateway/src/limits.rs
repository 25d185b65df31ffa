//! The limits of keys, users, projects and organisations, enforced: each request is charged before it runs, and what it did not
//! use is given back at its end. Gives `throng_core::limits` the clock and the lock. Does not know how tokens are counted.

mod headers;
mod scopes;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use throng_core::limits::{BudgetRefusal, LimitKind, LimitRefusal, Limiter, Reservation, Status};
use throng_core::time::{Nanos, Timestamp};
use throng_store::{MAX_KEYS, Outcome};

use crate::auth::Tenant;
use crate::ledger::Meter;
use crate::openai::ApiError;
use crate::retry_after::retry_after_s;

pub(crate) use headers::insert_headers;
pub(crate) use scopes::budget_scopes;

/// Most scopes that are in use at a time: all keys, and as many projects, organisations and users.
const MAX_SCOPES: usize = 2 * MAX_KEYS;

/// What all of them use.
#[derive(Debug)]
pub(crate) struct RateLimits {
    limiter: Mutex<Limiter>,
    origin: Instant,
}

/// What came of charging a request.
#[derive(Debug)]
pub(crate) struct Charged {
    /// What is left after it.
    pub status: Status,
    /// The charge, or why the request may not begin.
    pub charge: Result<Charge, LimitRefusal>,
}

/// What a request is charged with; dropping it gives back what it has not used, or all if it has not begun.
#[derive(Debug, Default)]
pub(crate) struct Charge {
    /// None where nothing is limited.
    reserved: Option<(Arc<RateLimits>, Reservation)>,
    n_used: Option<u64>,
    /// Counts for the ledger; none without one.
    meter: Option<Meter>,
}

impl RateLimits {
    /// Nothing is in use.
    pub fn new() -> Self {
        Self { limiter: Mutex::new(Limiter::new(MAX_SCOPES)), origin: Instant::now() }
    }

    /// Charges whoever asks with a request that uses at most `n_tokens` tokens.
    pub fn charge(self: &Arc<Self>, tenant: &Tenant, user: Option<&str>, n_tokens: u64) -> Charged {
        let scopes = scopes::scopes(tenant, user);
        if scopes.is_empty() {
            return Charged { status: Status::default(), charge: Ok(Charge::default()) };
        }
        let mut limiter = self.limiter.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Timestamp::from_ns(Nanos::from(self.origin.elapsed()).0);
        let reserved = limiter.reserve(&scopes, n_tokens, now);
        let status = limiter.status(&scopes, now);
        drop(limiter);
        let charge = reserved.map(|reservation| Charge {
            reserved: Some((self.clone(), reservation)),
            n_used: None,
            meter: None,
        });
        Charged { status, charge }
    }
}

impl Charge {
    /// The same charge, which counts for the ledger too.
    pub fn with_meter(mut self, meter: Option<Meter>) -> Self {
        self.meter = meter;
        self
    }

    /// Whether anybody wants to know what is used.
    pub fn is_counted(&self) -> bool {
        self.reserved.is_some() || self.meter.is_some()
    }

    /// A prompt of the request has reached an engine: it counts from now on.
    pub fn begin(&mut self, n_prompt_tokens: u64) {
        *self.n_used.get_or_insert(0) += n_prompt_tokens;
        self.meter.iter_mut().for_each(Meter::begin);
    }

    /// A prompt was computed or found in the cache.
    pub fn prompt(&mut self, n_tokens: u64, n_cached: u64) {
        self.meter.iter_mut().for_each(|meter| meter.prompt(n_tokens, n_cached));
    }

    /// A token of an answer came.
    pub fn token(&mut self) {
        self.meter.iter_mut().for_each(Meter::token);
    }

    /// An answer of which `n_seen` tokens came has ended with this many.
    pub fn answer_ended(&mut self, n_tokens: u64, n_seen: u64) {
        *self.n_used.get_or_insert(0) += n_tokens;
        self.meter.iter_mut().for_each(|meter| meter.answer_ended(n_tokens, n_seen));
    }

    /// The request has generated all that it will.
    pub fn end(&mut self, outcome: Outcome) {
        self.meter.iter_mut().for_each(|meter| meter.end(outcome));
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let Some((limits, reservation)) = self.reserved.take() else { return };
        let mut limiter = limits.limiter.lock().unwrap_or_else(PoisonError::into_inner);
        match self.n_used {
            Some(n_used) => limiter.settle(reservation, n_used),
            None => limiter.cancel(reservation),
        }
    }
}

/// The name of a refusal in metrics.
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

/// What a client is told of a refusal.
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

/// The name in metrics of a refusal because of a budget.
pub(crate) fn budget_name(refusal: BudgetRefusal) -> &'static str {
    match (refusal.is_daily, refusal.is_money) {
        (true, true) => "cost_per_day",
        (true, false) => "tokens_per_day",
        (false, true) => "cost_per_month",
        (false, false) => "tokens_per_month",
    }
}
