//! The limits of keys, enforced: each request is charged before it runs, and what it did not use is given back at its end. Gives
//! `throng_core::limits` the clock and the lock. Does not know how tokens are counted.

mod headers;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use throng_core::limits::{LimitKind, LimitRefusal, Limiter, Limits, Reservation, Scope, Status};
use throng_core::time::{Nanos, Timestamp};
use throng_store::{ApiKey, MAX_KEYS};

use crate::auth::Tenant;
use crate::openai::ApiError;
use crate::retry_after::retry_after_s;

pub(crate) use headers::insert_headers;

/// What all keys use.
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
#[derive(Debug)]
pub(crate) struct Charge {
    /// None where nothing is limited.
    reserved: Option<(Arc<RateLimits>, Reservation)>,
    n_used: Option<u64>,
}

impl RateLimits {
    /// Nothing is in use.
    pub fn new() -> Self {
        Self { limiter: Mutex::new(Limiter::new(MAX_KEYS)), origin: Instant::now() }
    }

    /// Charges whoever asks with a request that uses at most `n_tokens` tokens.
    pub fn charge(self: &Arc<Self>, tenant: &Tenant, n_tokens: u64) -> Charged {
        let scopes: Vec<Scope> = tenant.key.as_deref().and_then(scope_of).into_iter().collect();
        if scopes.is_empty() {
            let charge = Ok(Charge { reserved: None, n_used: None });
            return Charged { status: Status::default(), charge };
        }
        let mut limiter = self.limiter.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Timestamp::from_ns(Nanos::from(self.origin.elapsed()).0);
        let reserved = limiter.reserve(&scopes, n_tokens, now);
        let status = limiter.status(&scopes, now);
        drop(limiter);
        let charge =
            reserved.map(|reservation| Charge { reserved: Some((self.clone(), reservation)), n_used: None });
        Charged { status, charge }
    }
}

impl Charge {
    /// Whether it belongs to a limit.
    pub fn is_limited(&self) -> bool {
        self.reserved.is_some()
    }

    /// The request has begun: it counts from now on, with the tokens that are added.
    pub fn begin(&mut self) {
        self.n_used.get_or_insert(0);
    }

    /// The request has used these tokens too.
    pub fn add(&mut self, n_tokens: u64) {
        *self.n_used.get_or_insert(0) += n_tokens;
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
            ApiError::rate_limit_exceeded(&format!("this API key has {limit} {}", unit(kind)), seconds)
        }
        LimitRefusal::NeverFits { kind, limit, needed } => {
            ApiError::request_exceeds_rate_limit(unit(kind), limit, needed)
        }
        LimitRefusal::TooManyScopes => {
            ApiError::overloaded("Too many API keys with limits are in use.", retry_after_s())
        }
    }
}

/// The key as a scope; none without limits.
fn scope_of(key: &ApiKey) -> Option<Scope> {
    let limits = Limits {
        requests_per_minute: key.limits.requests_per_minute.map(u64::from),
        tokens_per_minute: key.limits.tokens_per_minute.map(u64::from),
        concurrent_requests: key.limits.concurrent_requests.map(u64::from),
    };
    (!limits.is_empty()).then(|| Scope { name: Arc::from(key.id.as_str()), limits })
}
