//! A gateway's shares of all limits: admits within them, and asks the pool for others. Does not know how
//! the pool is reached.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::lease::{Lease, Standing};
use super::{Amounts, LeaseReply, LeaseRequest, MAX_ENTRIES, limits_of, numbers};
use crate::fleet::limits::limiter::{LimitRefusal, Limiter, Remaining, Reservation, Scope, Status};
use crate::time::Timestamp;

/// Reason why a request does not fit into this gateway's shares. The pool may have more; a request that
/// cannot wait is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Undecided {
    /// The pool must be queried; if it has nothing, the request is refused with this error.
    LeaseRequest(LimitRefusal),
    /// The request may not begin.
    Refused(LimitRefusal),
}

/// Shares of all scopes, and their usage.
#[derive(Debug, Clone)]
pub struct Leases {
    limiter: Limiter,
    max_scopes: usize,
    pub(super) leases: BTreeMap<Arc<str>, Lease>,
    short: BTreeSet<Arc<str>>,
    pub(super) standing: Standing,
    least_gateways: u64,
    pub(super) number: u64,
    pub(super) sent_at: Option<Timestamp>,
    /// Scope after which the next question continues if the last one was full.
    after: Option<Arc<str>>,
}

impl Leases {
    /// Creates leases without usage. `least_gateways` is the assumed number of gateways until the pool has
    /// answered.
    pub fn new(max_scopes: usize, least_gateways: u64) -> Self {
        let standing =
            Standing { n_gateways: least_gateways.max(1), heard_at: None, is_answered: false, epoch: 0 };
        Self {
            limiter: Limiter::new(max_scopes),
            max_scopes,
            leases: BTreeMap::new(),
            short: BTreeSet::new(),
            standing,
            least_gateways: least_gateways.max(1),
            number: 0,
            sent_at: None,
            after: None,
        }
    }

    /// Charges all scopes together with one request that uses at most `n_tokens` tokens, or charges none.
    ///
    /// # Errors
    /// When a limit would be exceeded, or a share while the pool may have more.
    pub fn reserve(
        &mut self,
        scopes: &[Scope],
        n_tokens: u64,
        now: Timestamp,
    ) -> Result<Reservation, Undecided> {
        self.touch(scopes, now).map_err(Undecided::Refused)?;
        let Self { limiter, leases, standing, .. } = self;
        let allowed = |scope: &Scope| {
            let lease = leases.get(&scope.name);
            lease.map_or(scope.limits, |lease| limits_of(lease.allowed(standing, now)))
        };
        match limiter.reserve_within(scopes, allowed, n_tokens, now) {
            Ok(reservation) => Ok(reservation),
            Err(refusal @ LimitRefusal::Exceeded { .. }) if self.standing.is_answered => {
                Err(self.wait_for(scopes, [1, n_tokens, 1], refusal, now))
            }
            Err(refusal) => Err(Undecided::Refused(refusal)),
        }
    }

    /// Number of gateways known to share limits, and number of scopes of which this one holds a share.
    pub fn standing(&self) -> (u64, usize) {
        (self.standing.n_gateways, self.leases.len())
    }

    /// Settles a reservation; see [`Limiter::settle`].
    pub fn settle(&mut self, reservation: Reservation, n_used: u64, now: Timestamp) {
        self.limiter.settle(reservation, n_used, now);
    }

    /// Cancels a reservation; see [`Limiter::cancel`].
    pub fn cancel(&mut self, reservation: Reservation) {
        self.limiter.cancel(reservation);
    }

    /// Remaining parts of the limits, as far as this gateway can tell.
    pub fn status(&mut self, scopes: &[Scope], now: Timestamp) -> Status {
        let mut status = Status::default();
        for scope in scopes {
            let one = self.limiter.status(std::slice::from_ref(scope), now);
            let used = self.limiter.used(&scope.name, now);
            let lease = self.leases.get(&scope.name);
            let [requests, tokens, _] =
                lease.map_or([None; 3], |lease| lease.left(used, &self.standing, now));
            let least = |left: Option<Remaining>, known: Option<u64>| {
                let left = left?;
                Some(Remaining { remaining: left.remaining.min(known.unwrap_or(left.remaining)), ..left })
            };
            let tighter = |a: Option<Remaining>, b: Option<Remaining>| match (a, b) {
                (Some(a), Some(b)) if b.remaining < a.remaining => Some(b),
                (a, b) => a.or(b),
            };
            status.requests = tighter(status.requests, least(one.requests, requests));
            status.tokens = tighter(status.tokens, least(one.tokens, tokens));
        }
        status
    }

    /// Whether requests wait for shares that the pool may have.
    #[cfg(test)]
    pub(super) fn is_needed(&self) -> bool {
        self.leases.values().any(Lease::is_needed)
    }

    /// Whether the pool answers and grants shares.
    #[cfg(test)]
    pub(super) fn is_answered(&self) -> bool {
        self.standing.is_answered
    }

    /// Creates the next query. At most one is in flight: it is followed by [`Self::told`] or
    /// [`Self::not_told`].
    pub fn ask(&mut self, now: Timestamp) -> LeaseRequest {
        self.forget_unused(now);
        self.number += 1;
        self.sent_at = Some(now);
        let Self { limiter, leases, short, standing, .. } = self;
        // Requests that wait come first, then the others in turn.
        let is_due = |name: &Arc<str>, lease: &Lease, limiter: &mut Limiter| {
            lease.is_due(standing, short.contains(name), limiter.used(name, now), now)
        };
        let mut due: Vec<(bool, bool, Arc<str>)> = Vec::new();
        for (name, lease) in leases.iter() {
            if is_due(name, lease, limiter) {
                let had_turn = self.after.as_ref().is_some_and(|after| name <= after);
                due.push((!lease.is_needed(), had_turn, name.clone()));
            }
        }
        due.sort_unstable();
        let is_more = due.len() > MAX_ENTRIES;
        due.truncate(MAX_ENTRIES);
        self.after = due.last().filter(|_| is_more).map(|(_, _, name)| name.clone());
        let entries = due.into_iter().filter_map(|(_, _, name)| {
            let used = limiter.used(&name, now);
            Some(leases.get_mut(&name)?.ask(&name, used, standing, now))
        });
        LeaseRequest { number: self.number, is_last: false, entries: entries.collect() }
    }

    /// Creates the last query: usage stays counted until its minute is over, the rest of the shares is
    /// returned.
    pub fn ask_last(&mut self, now: Timestamp) -> LeaseRequest {
        self.leases.values_mut().for_each(Lease::set_short);
        LeaseRequest { is_last: true, ..self.ask(now) }
    }

    /// Whether the last question was too small for all due scopes.
    pub fn has_more(&self) -> bool {
        self.after.is_some()
    }

    /// Applies the answer to the last query.
    pub fn told(&mut self, ask: &LeaseRequest, told: &LeaseReply, now: Timestamp) {
        self.standing.is_answered = !told.is_settling;
        self.standing.epoch = told.epoch;
        if !told.is_settling {
            self.standing.heard_at = self.sent_at;
        }
        let others_may_come = if told.is_settling { self.standing.n_gateways } else { 1 };
        self.standing.n_gateways = told.n_gateways.max(self.least_gateways).max(others_may_come);
        self.short = told.short.iter().cloned().collect();
        for (asked, told) in ask.entries.iter().zip(&told.entries) {
            if let Some(lease) = self.leases.get_mut(&asked.name) {
                lease.told(told, self.short.contains(&asked.name), &self.standing, now);
            }
        }
        for name in &self.short {
            if let Some(lease) = self.leases.get_mut(name) {
                lease.set_short();
            }
        }
    }

    /// Notes that the last question has no answer in time.
    pub fn not_told(&mut self) {
        self.standing.is_answered = false;
    }

    /// Creates leases for the scopes of a request.
    fn touch(&mut self, scopes: &[Scope], now: Timestamp) -> Result<(), LimitRefusal> {
        for scope in scopes {
            let limits = numbers(&scope.limits);
            if let Some(lease) = self.leases.get_mut(&scope.name) {
                lease.touch(limits, now);
                continue;
            }
            if self.leases.len() >= self.max_scopes {
                return Err(LimitRefusal::TooManyScopes);
            }
            self.leases.insert(scope.name.clone(), Lease::new(limits, now));
        }
        Ok(())
    }

    fn forget_unused(&mut self, now: Timestamp) {
        let Self { limiter, leases, .. } = self;
        leases.retain(|name, lease| !lease.is_gone(limiter.used(name, now), now));
    }

    /// Notes the amounts that the request needs, or refuses it if the pool has nothing left.
    fn wait_for(
        &mut self,
        scopes: &[Scope],
        needed: Amounts,
        refusal: LimitRefusal,
        now: Timestamp,
    ) -> Undecided {
        for scope in scopes {
            let used = self.limiter.used(&scope.name, now);
            let Some(lease) = self.leases.get_mut(&scope.name) else { continue };
            let allowed = lease.allowed(&self.standing, now);
            let lacks: Amounts = std::array::from_fn(|k| {
                let here = allowed[k].unwrap_or(u64::MAX);
                used[k].saturating_add(needed[k]).saturating_sub(here)
            });
            if lacks == [0; 3] {
                continue;
            }
            if lease.is_final(lacks, now) {
                return Undecided::Refused(refusal);
            }
            lease.wait_for(needed);
        }
        Undecided::LeaseRequest(refusal)
    }
}
