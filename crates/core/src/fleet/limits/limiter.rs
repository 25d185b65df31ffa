//! Limits of scopes, checked and charged together. Does not know the meaning of a scope.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::window::{BucketId, Use, Window};
use crate::time::{Nanos, Timestamp};

/// Limits of a scope; an absent one does not restrict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of requests that may begin in any minute.
    pub requests_per_minute: Option<u64>,
    /// Tokens that the requests which begin in any minute may use, of prompts and outputs together.
    pub tokens_per_minute: Option<u64>,
    /// Maximum number of requests that may run at a time.
    pub concurrent_requests: Option<u64>,
}

impl Limits {
    /// Whether there is no limit.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Holder of limits: a key, a project, … The limits may change from one request to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    /// Name that no other scope has.
    pub name: Arc<str>,
    /// Limits of the scope.
    pub limits: Limits,
}

/// Kind of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitKind {
    /// Requests at a time.
    ConcurrentRequests,
    /// Requests in a minute.
    Requests,
    /// Tokens in a minute.
    Tokens,
}

/// Reason why a request may not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitRefusal {
    /// Too much of the limit is in use.
    Exceeded {
        /// The limit with the longest wait for the request.
        kind: LimitKind,
        /// Amount of the limit.
        limit: u64,
        /// Time after which the request fits without further use; earlier only if an amount is returned.
        /// `None` if running requests must end first.
        wait: Option<Nanos>,
    },
    /// The request alone is over the limit.
    NeverFits {
        /// Kind of the limit.
        kind: LimitKind,
        /// Amount of the limit.
        limit: u64,
        /// Amount that the request needs.
        needed: u64,
    },
    /// The maximum number of scopes is in use.
    TooManyScopes,
}

/// Remaining part of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remaining {
    /// Amount of the limit.
    pub limit: u64,
    /// Amount that is left now.
    pub remaining: u64,
    /// Time after which the whole limit is available without further use.
    pub reset: Nanos,
}

/// Remaining parts of the limits of a request's scopes: the smallest of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Status {
    /// Remaining requests of the minute.
    pub requests: Option<Remaining>,
    /// Remaining tokens of the minute.
    pub tokens: Option<Remaining>,
}

/// Charge of a request. It must be returned to [`Limiter::settle`] or [`Limiter::cancel`].
#[derive(Debug)]
#[must_use]
pub struct Reservation {
    pub(super) scopes: Vec<Arc<str>>,
    pub(super) bucket: BucketId,
    pub(super) n_tokens: u64,
}

/// Usage of all scopes.
#[derive(Debug, Clone)]
pub struct Limiter {
    max_scopes: usize,
    scopes: BTreeMap<Arc<str>, Usage>,
    pub(super) now: BucketId,
    swept: BucketId,
}

#[derive(Debug, Clone, Default)]
struct Usage {
    window: Window,
    n_running: u64,
}

impl Limiter {
    /// Creates a limiter without usage, for at most `max_scopes` scopes at a time: those that have a
    /// running request or had one that began within the last minute.
    pub fn new(max_scopes: usize) -> Self {
        Self { max_scopes, scopes: BTreeMap::new(), now: BucketId::default(), swept: BucketId::default() }
    }

    /// Charges all scopes together with one request that uses at most `n_tokens` tokens, or charges none.
    ///
    /// # Errors
    /// When a limit of a scope would be exceeded.
    pub fn reserve(
        &mut self,
        scopes: &[Scope],
        n_tokens: u64,
        now: Timestamp,
    ) -> Result<Reservation, LimitRefusal> {
        self.reserve_within(scopes, |scope| scope.limits, n_tokens, now)
    }

    /// Charges as [`Self::reserve`], with only a part of each scope's limits available to this gateway. A
    /// request over the whole limit never fits, and refusals name the whole limit.
    pub(super) fn reserve_within(
        &mut self,
        scopes: &[Scope],
        allowed: impl Fn(&Scope) -> Limits,
        n_tokens: u64,
        now: Timestamp,
    ) -> Result<Reservation, LimitRefusal> {
        self.advance(scopes, now);
        self.check(scopes, allowed, Use { requests: 1, tokens: n_tokens }, now)?;
        self.make_room(scopes)?;
        for scope in scopes {
            let usage = self.scopes.entry(scope.name.clone()).or_default();
            usage.window.add(self.now, Use { requests: 1, tokens: n_tokens });
            usage.n_running += 1;
        }
        let names = scopes.iter().map(|scope| scope.name.clone()).collect();
        Ok(Reservation { scopes: names, bucket: self.now, n_tokens })
    }

    /// Ends a request that has used this many tokens. Unused tokens are returned to the time at which they
    /// were charged; tokens beyond the reservation are charged now, even above the limit, so that later
    /// requests wait.
    pub fn settle(&mut self, reservation: Reservation, n_used: u64, now: Timestamp) {
        let excess = n_used.saturating_sub(reservation.n_tokens);
        if excess > 0 {
            self.now = self.now.max(BucketId::at(now));
            for name in &reservation.scopes {
                if let Some(usage) = self.scopes.get_mut(name) {
                    usage.window.add(self.now, Use { requests: 0, tokens: excess });
                }
            }
        }
        let tokens = reservation.n_tokens.saturating_sub(n_used);
        self.give_back(reservation, Use { requests: 0, tokens });
    }

    /// Gives back the whole reservation of a request that has not begun.
    pub fn cancel(&mut self, reservation: Reservation) {
        let tokens = reservation.n_tokens;
        self.give_back(reservation, Use { requests: 1, tokens });
    }

    /// Remaining parts of the limits.
    pub fn status(&mut self, scopes: &[Scope], now: Timestamp) -> Status {
        self.advance(scopes, now);
        let mut status = Status::default();
        for scope in scopes {
            let window = self.scopes.get(&scope.name).map(|usage| &usage.window);
            let limits = scope.limits;
            tighten(&mut status.requests, limits.requests_per_minute, window, now, |used| used.requests);
            tighten(&mut status.tokens, limits.tokens_per_minute, window, now, |used| used.tokens);
        }
        status
    }

    /// Usage of a scope: requests and tokens of the last minute, and running requests.
    pub(super) fn used(&mut self, name: &str, now: Timestamp) -> [u64; 3] {
        self.now = self.now.max(BucketId::at(now));
        let Some(usage) = self.scopes.get_mut(name) else { return [0; 3] };
        usage.window.forget_before(self.now);
        let Use { requests, tokens } = usage.window.total();
        [requests, tokens, usage.n_running]
    }

    /// Number of scopes in memory.
    pub fn n_scopes(&self) -> usize {
        self.scopes.len()
    }

    /// Advances the time, which never decreases even if callers have read their clocks in another order.
    fn advance(&mut self, scopes: &[Scope], now: Timestamp) {
        self.now = self.now.max(BucketId::at(now));
        for scope in scopes {
            if let Some(usage) = self.scopes.get_mut(&scope.name) {
                usage.window.forget_before(self.now);
            }
        }
    }

    fn check(
        &self,
        scopes: &[Scope],
        allowed: impl Fn(&Scope) -> Limits,
        needed: Use,
        now: Timestamp,
    ) -> Result<(), LimitRefusal> {
        let mut refusal = None;
        for scope in scopes {
            let usage = self.scopes.get(&scope.name);
            let (window, n_running) = (usage.map(|u| &u.window), usage.map_or(0, |u| u.n_running));
            let (limits, here) = (scope.limits, allowed(scope));
            let (limit, rest) = (limits.requests_per_minute, here.requests_per_minute);
            let requests =
                exceeds(LimitKind::Requests, limit, rest, window, needed, now, |used| used.requests)?;
            let (limit, rest) = (limits.tokens_per_minute, here.tokens_per_minute);
            let tokens = exceeds(LimitKind::Tokens, limit, rest, window, needed, now, |used| used.tokens)?;
            let kind = LimitKind::ConcurrentRequests;
            let concurrent = match limits.concurrent_requests.zip(here.concurrent_requests) {
                Some((0, _)) => return Err(LimitRefusal::NeverFits { kind, limit: 0, needed: 1 }),
                Some((limit, here)) if n_running >= here => Some((None, kind, limit)),
                _ => None,
            };
            refusal = [requests, tokens, concurrent].into_iter().flatten().chain(refusal).max();
        }
        match refusal {
            Some((wait, kind, limit)) => Err(LimitRefusal::Exceeded { kind, limit, wait }),
            None => Ok(()),
        }
    }

    /// Drops scopes without usage: once a minute, and when there are too many, but at most once in a
    /// bucket.
    fn make_room(&mut self, scopes: &[Scope]) -> Result<(), LimitRefusal> {
        let n_new = scopes.iter().filter(|scope| !self.scopes.contains_key(&scope.name)).count();
        let fits = |n: usize| n + n_new <= self.max_scopes;
        let is_full = !fits(self.scopes.len());
        if self.swept != self.now && (is_full || self.swept.is_over(self.now)) {
            self.swept = self.now;
            self.scopes.retain(|_, usage| {
                usage.window.forget_before(self.swept);
                usage.n_running > 0 || !usage.window.is_empty()
            });
        }
        if fits(self.scopes.len()) { Ok(()) } else { Err(LimitRefusal::TooManyScopes) }
    }

    fn give_back(&mut self, reservation: Reservation, unused: Use) {
        for name in reservation.scopes {
            if let Some(usage) = self.scopes.get_mut(&name) {
                usage.n_running = usage.n_running.saturating_sub(1);
                usage.window.take_back(reservation.bucket, unused);
            }
        }
    }
}

/// Whether the part of a limit that this gateway may use is exceeded, and for how long.
fn exceeds(
    kind: LimitKind,
    limit: Option<u64>,
    here: Option<u64>,
    window: Option<&Window>,
    needed: Use,
    now: Timestamp,
    of: impl Fn(&Use) -> u64,
) -> Result<Option<(Option<Nanos>, LimitKind, u64)>, LimitRefusal> {
    let (Some((limit, here)), needed) = (limit.zip(here), of(&needed)) else { return Ok(None) };
    if needed > limit {
        return Err(LimitRefusal::NeverFits { kind, limit, needed });
    }
    let used = window.map_or(0, |window| of(&window.total()));
    let excess = used.saturating_add(needed).saturating_sub(here);
    if excess == 0 {
        return Ok(None);
    }
    let freed = window.and_then(|window| window.frees(excess, of));
    Ok(Some((freed.map(|bucket| bucket.counts_for(now)), kind, limit)))
}

fn tighten(
    tightest: &mut Option<Remaining>,
    limit: Option<u64>,
    window: Option<&Window>,
    now: Timestamp,
    of: impl Fn(&Use) -> u64,
) {
    let Some(limit) = limit else { return };
    let used = window.map_or(0, |window| of(&window.total()));
    let last = window.and_then(|window| window.last(of));
    let reset = last.map_or(Nanos(0), |bucket| bucket.counts_for(now));
    let remaining = Remaining { limit, remaining: limit.saturating_sub(used), reset };
    if tightest.is_none_or(|before| remaining.remaining < before.remaining) {
        *tightest = Some(remaining);
    }
}
