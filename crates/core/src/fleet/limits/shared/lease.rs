//! A gateway's share of one scope: the part that may be used, and its report to the pool. Does not know
//! other scopes.

use super::{Amounts, LEASE, LeaseReplyEntry, LeaseRequestEntry};
use crate::time::{Nanos, Timestamp};
use std::sync::Arc;

/// After this time without the pool, everything that gateways used beyond an equal part has left the minute:
/// the lease, the minute and its last quarter of a second, and how far apart gateways may have noticed.
const OTHERS_HAVE_YIELDED: Nanos = Nanos(LEASE.0 + 62_000_000_000);
/// Time for which the pool's answer that a limit is used up holds.
const FINAL_FOR: Nanos = Nanos(50_000_000);
/// Interval between queries to the pool whether a scope is still short.
const ASK_IF_SHORT: Nanos = Nanos(500_000_000);
/// A share that is not used is returned after this time.
const UNUSED_FOR: Nanos = Nanos(5_000_000_000);
/// Longest time without a report of a share to the pool, so that the pool does not drop the scope.
const REFRESH: Nanos = Nanos(20_000_000_000);

/// Position of a gateway among the others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    /// Number of gateways.
    pub n_gateways: u64,
    /// Time at which the last answered question was sent; `None` before the first.
    pub heard_at: Option<Timestamp>,
    /// Whether the last question was answered by a pool that grants shares.
    pub is_answered: bool,
    /// Number of the pool's memory.
    pub epoch: u64,
}

/// A share of the limits of a scope.
#[derive(Debug, Clone)]
pub(super) struct Lease {
    pub limits: [Option<u64>; 3],
    share: Amounts,
    /// Whether a pool that grants shares has ever answered about the scope.
    is_known: bool,
    need: Amounts,
    free: Amounts,
    /// Time at which the pool answered that the limit is used up.
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

    /// Whether a pool that grants shares has ever answered about the scope. Before that, an equal part is
    /// used while the pool does not answer, although other gateways may have leased all of it.
    #[cfg(test)]
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// Notes a request for the scope, with the scope's limits.
    pub fn touch(&mut self, limits: [Option<u64>; 3], now: Timestamp) {
        self.used_at = now;
        if self.limits != limits {
            self.limits = limits;
            self.limits_changed = true;
        }
    }

    /// Amounts that this gateway may use now; `None` for absent limits.
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

    /// Whether the pool has just answered that nothing is left for a request that needs these amounts.
    pub fn is_final(&self, lacks: Amounts, now: Timestamp) -> bool {
        let is_fresh = self.final_at.is_some_and(|at| now.since(at) < FINAL_FOR);
        is_fresh && (0..3).any(|k| lacks[k] > self.free[k])
    }

    /// Notes that a waiting request needs these amounts in all.
    pub fn wait_for(&mut self, needed: Amounts) {
        for (sum, needed) in self.need.iter_mut().zip(needed) {
            *sum = sum.saturating_add(needed);
        }
    }

    /// Notes that other gateways need more than is left.
    pub fn set_short(&mut self) {
        self.is_short = true;
    }

    /// Whether nothing is used and no share is held.
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

    /// Creates the entry for a question to the pool. From now on no more than the kept share is used.
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

    /// Applies the pool's answer.
    pub fn told(&mut self, told: &LeaseReplyEntry, is_listed: bool, standing: &Standing, now: Timestamp) {
        self.share = told.share;
        self.free = told.free;
        self.is_known |= standing.is_answered;
        self.final_at = (told.is_final && standing.is_answered).then_some(now);
        self.is_short = is_listed;
        self.told_at = Some(now);
        self.epoch = standing.epoch;
    }

    /// Amounts that may still be used: the rest of this gateway's share and the part that no gateway has
    /// leased.
    pub fn left(&self, used: Amounts, standing: &Standing, now: Timestamp) -> [Option<u64>; 3] {
        let allowed = self.allowed(standing, now);
        std::array::from_fn(|k| {
            let free = if standing.is_answered { self.free[k] } else { 0 };
            Some(allowed[k]?.saturating_sub(used[k]).saturating_add(free))
        })
    }
}

/// A gateway's part of a limit that is divided equally, at least one.
fn equal_part(limit: u64, standing: &Standing) -> u64 {
    (limit / standing.n_gateways.max(1)).max(1).min(limit)
}
