//! A gateway's share of one scope: how much of it may be used, and what to say of it to the pool. Does not
//! know other scopes.

use super::{Amounts, LEASE, LeaseReplyEntry, LeaseRequestEntry};
use crate::time::{Nanos, Timestamp};
use std::sync::Arc;

/// After this time without the pool, everything that gateways used beyond an equal part has left the minute:
/// the lease, the minute and its last quarter of a second, and how far apart gateways may have noticed.
const OTHERS_HAVE_YIELDED: Nanos = Nanos(LEASE.0 + 62_000_000_000);
/// Time for which the pool's word that nothing is left holds.
const FINAL_FOR: Nanos = Nanos(50_000_000);
/// Interval of asking the pool whether a scope that was short is so still.
const ASK_IF_SHORT: Nanos = Nanos(500_000_000);
/// A share that is not used is given back after this time.
const UNUSED_FOR: Nanos = Nanos(5_000_000_000);
/// The pool hears of every share at least so often, so that it does not forget the scope.
const REFRESH: Nanos = Nanos(20_000_000_000);

/// Knowledge of a gateway about itself among the others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    /// Number of gateways.
    pub n_gateways: u64,
    /// Time at which the last answered question was sent; none before the first.
    pub heard_at: Option<Timestamp>,
    /// Whether the last question was answered, by a pool that gives.
    pub is_answered: bool,
    /// The pool's memory.
    pub epoch: u64,
}

/// A share of the limits of a scope.
#[derive(Debug, Clone)]
pub(super) struct Lease {
    pub limits: [Option<u64>; 3],
    share: Amounts,
    /// Whether a pool that gives has ever spoken of it.
    is_known: bool,
    need: Amounts,
    free: Amounts,
    /// Time at which the pool said that nothing more can be had.
    final_at: Option<Timestamp>,
    is_short: bool,
    told_at: Option<Timestamp>,
    epoch: u64,
    used_at: Timestamp,
    limits_changed: bool,
}

impl Lease {
    pub fn new(limits: [Option<u64>; 3], now: Timestamp) -> Self {
        Self {
            limits,
            share: [0; 3],
            is_known: false,
            need: [0; 3],
            free: [0; 3],
            final_at: None,
            is_short: false,
            told_at: None,
            epoch: 0,
            used_at: now,
            limits_changed: false,
        }
    }

    /// Whether a pool that gives has ever spoken of it. Until then an equal part is used where the pool does
    /// not answer, although others may have leased all of it.
    #[cfg(test)]
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// A request is here for it, and these are its limits.
    pub fn touch(&mut self, limits: [Option<u64>; 3], now: Timestamp) {
        self.used_at = now;
        if self.limits != limits {
            self.limits = limits;
            self.limits_changed = true;
        }
    }

    /// Amount that may be used here now; none where there is no limit.
    pub fn allowed(&self, standing: &Standing, now: Timestamp) -> [Option<u64>; 3] {
        let age = standing.heard_at.map(|at| now.since(at));
        std::array::from_fn(|k| {
            let limit = self.limits[k]?;
            let equal_part = equal_part(limit, standing);
            let allowed = match age {
                _ if !self.is_known && standing.is_answered => 0,
                _ if !self.is_known => equal_part,
                Some(age) if age <= LEASE => self.share[k],
                Some(age) if age <= OTHERS_HAVE_YIELDED => self.share[k].min(equal_part),
                _ => equal_part,
            };
            Some(allowed.min(limit))
        })
    }

    /// Whether the pool has just said that a request which lacks so much cannot be helped.
    pub fn is_final(&self, lacks: Amounts, now: Timestamp) -> bool {
        let is_fresh = self.final_at.is_some_and(|at| now.since(at) < FINAL_FOR);
        is_fresh && (0..3).any(|k| lacks[k] > self.free[k])
    }

    /// A request that waits needs so much in all.
    pub fn wait_for(&mut self, needed: Amounts) {
        for (sum, needed) in self.need.iter_mut().zip(needed) {
            *sum = sum.saturating_add(needed);
        }
    }

    /// Others want more than is left.
    pub fn set_short(&mut self) {
        self.is_short = true;
    }

    /// Whether nothing is used and nothing kept.
    pub fn is_gone(&self, used: Amounts, now: Timestamp) -> bool {
        used == [0; 3] && self.is_unused(now) && (self.share == [0; 3] || !self.is_known)
    }

    fn is_unused(&self, now: Timestamp) -> bool {
        now.since(self.used_at) >= UNUSED_FOR
    }

    /// Whether requests wait for more.
    pub fn is_needed(&self) -> bool {
        self.need != [0; 3]
    }

    /// Whether the next question to the pool must include this scope.
    pub fn is_due(&self, standing: &Standing, is_listed: bool, used: Amounts, now: Timestamp) -> bool {
        let since_told = self.told_at.map(|at| now.since(at));
        self.is_needed()
            || is_listed
            || self.limits_changed
            || self.epoch != standing.epoch
            || since_told.is_none_or(|age| age >= REFRESH || (self.is_short && age >= ASK_IF_SHORT))
            || (self.is_unused(now) && used == [0; 3] && self.share != [0; 3])
    }

    /// Makes a question to the pool. From now on no more than what is kept is used.
    pub fn ask(
        &mut self,
        name: &Arc<str>,
        used: Amounts,
        standing: &Standing,
        now: Timestamp,
    ) -> LeaseRequestEntry {
        let allowed = self.allowed(standing, now);
        let need = std::mem::take(&mut self.need);
        let is_unused = self.is_unused(now) && used == [0; 3];
        let yields = self.is_short || is_unused;
        let keep: Amounts = std::array::from_fn(|k| match allowed[k] {
            None => 0,
            Some(_) if yields && standing.is_answered => used[k],
            Some(allowed) => used[k].max(allowed),
        });
        let lacking: Amounts =
            std::array::from_fn(|k| (used[k].saturating_add(need[k])).saturating_sub(keep[k]));
        let want = std::array::from_fn(|k| match self.limits[k] {
            Some(limit) if !yields => {
                equal_part(limit, standing).saturating_sub(keep[k].saturating_add(lacking[k]))
            }
            _ => 0,
        });
        if self.is_known {
            self.share = keep;
        }
        self.limits_changed = false;
        LeaseRequestEntry { name: name.clone(), limits: self.limits, keep, need: lacking, want, yields }
    }

    /// The pool has answered.
    pub fn told(&mut self, told: &LeaseReplyEntry, is_listed: bool, standing: &Standing, now: Timestamp) {
        self.share = told.share;
        self.free = told.free;
        self.is_known |= standing.is_answered;
        self.final_at = (told.is_final && standing.is_answered).then_some(now);
        self.is_short = is_listed;
        self.told_at = Some(now);
        self.epoch = standing.epoch;
    }

    /// Amounts that may still be used: the rest of this gateway's share and what no gateway has leased.
    pub fn left(&self, used: Amounts, standing: &Standing, now: Timestamp) -> [Option<u64>; 3] {
        let allowed = self.allowed(standing, now);
        std::array::from_fn(|k| {
            let free = if standing.is_answered { self.free[k] } else { 0 };
            Some(allowed[k]?.saturating_sub(used[k]).saturating_add(free))
        })
    }
}

/// One gateway's part of a limit where all have as much, and one at least.
fn equal_part(limit: u64, standing: &Standing) -> u64 {
    (limit / standing.n_gateways.max(1)).max(1).min(limit)
}
