//! Invariants of every schedule: limits are kept, and requests that fit are not refused.

use super::{BUCKET, MINUTE, RECENTLY, Waiting, World};
use crate::fleet::limits::limiter::LimitRefusal;
use crate::fleet::limits::shared::lease::Lease;
use crate::fleet::limits::shared::{Amounts, numbers};
use crate::time::{Nanos, Timestamp};

impl World {
    /// Usage of a scope: requests and tokens that began after a point in time, and running requests.
    fn used(&self, scope: usize, from: Timestamp) -> Amounts {
        let of_scope = || self.begun.iter().filter(move |begun| begun.scopes.contains(&scope));
        let recent = || of_scope().filter(|begun| begun.at > from);
        let running = of_scope().filter(|begun| begun.reservation.is_some()).count();
        [recent().count() as u64, recent().map(|begun| begun.n_tokens).sum(), running as u64]
    }

    /// A gateway's share of a scope.
    pub(super) fn lease_of(&self, id: &str, scope: usize) -> Option<&Lease> {
        let gateway = self.gateways.iter().find(|gateway| gateway.id == id)?;
        gateway.leases.leases.get(&self.scopes[scope].name)
    }

    pub(super) fn check_limits(&self, asked: &[usize], n_tokens: u64) -> Result<(), String> {
        if self.now.since(self.blind_at) < Nanos(MINUTE.0 + BUCKET.0) {
            return Ok(());
        }
        for &i in asked {
            let used = self.used(i, self.now - MINUTE);
            for (k, needed) in [1, n_tokens, 1].into_iter().enumerate() {
                let limit = numbers(&self.scopes[i].limits)[k];
                if limit.is_some_and(|limit| used[k] + needed > limit) {
                    return Err(format!("scope {i}: {} and {needed} of {limit:?} ({k})", used[k]));
                }
            }
        }
        Ok(())
    }

    /// Checks that in calm times only requests that do not fit are refused.
    pub(super) fn judge(&mut self, waiting: &Waiting, refusal: LimitRefusal) -> Result<(), String> {
        if matches!(refusal, LimitRefusal::NeverFits { .. })
            || self.now < self.calm_since
            || self.now.since(self.calm_since.max(self.away_until)) < Nanos(3_000_000_000)
        {
            return Ok(());
        }
        self.n_judged += 1;
        let moved_tokens: u64 = self.moved.iter().map(|(_, n)| n).sum();
        let n_moved = self.moved.len() as u64;
        let fits = waiting.scopes.iter().all(|&i| {
            let used = self.used(i, self.now - MINUTE - BUCKET - BUCKET - RECENTLY);
            let limits = numbers(&self.scopes[i].limits);
            let needed = [1 + n_moved, waiting.n_tokens + moved_tokens, 1 + n_moved];
            (0..3).all(|k| limits[k].is_none_or(|limit| used[k] + needed[k] <= limit))
        });
        if fits { Err(format!("{refusal:?} although it fits")) } else { Ok(()) }
    }
}
