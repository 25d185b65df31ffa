//! Faults in a schedule: the pool is unreachable or loses its memory, gateways die.

use super::{Bug, MINUTE, World};
use crate::fleet::limits::limiter::Scope;
use crate::fleet::limits::shared::{LeaseRequest, LeaseRequestEntry, Pool, numbers};
use crate::time::Nanos;

impl World {
    pub(super) fn leave_for(&mut self, ms: u64) {
        self.away_until = self.now + Nanos(self.rng.u64(..ms * 1_000_000));
        self.forget_dead();
    }

    pub(super) fn flush(&mut self) {
        self.pool = Pool::default();
        self.calm_since = self.now;
        self.forget_dead();
        if self.bug == Some(Bug::EmptyPoolGives) {
            // As if it had been empty for long.
            let now_ms = self.now.as_ns() / 1_000_000;
            for back in [4_000, 2_700, 1_400, 0] {
                let ask = LeaseRequest { number: 5_000 - back, is_last: true, entries: Vec::new() };
                let _ = self.pool.exchange("nobody", &ask, now_ms - back);
            }
        }
    }

    /// Drops the usage of lost gateways, which only the pool has and loses with its memory.
    fn forget_dead(&mut self) {
        let alive: Vec<&str> = self.gateways.iter().map(|gateway| gateway.id.as_str()).collect();
        self.begun.retain(|begun| alive.contains(&begun.gateway.as_str()));
    }

    pub(super) fn kill(&mut self) {
        let i = self.rng.usize(..self.gateways.len());
        let new = self.new_gateway();
        let dead = std::mem::replace(&mut self.gateways[i], new);
        // Its requests end, as used as they could be.
        for begun in self.begun.iter_mut().filter(|begun| begun.gateway == dead.id) {
            begun.reservation = None;
        }
        if let Some((ask, at)) = dead.question {
            self.late.push((dead.id.clone(), ask, at));
        }
        if self.bug == Some(Bug::DeadGatewaysAreForgotten) {
            let ask = LeaseRequest { number: u64::MAX, is_last: true, entries: self.nothing() };
            let _ = self.pool.exchange(&dead.id, &ask, self.now.as_ns() / 1_000_000);
        }
        self.calm_since = self.now + MINUTE;
    }

    fn nothing(&self) -> Vec<LeaseRequestEntry> {
        let nothing = |scope: &Scope| LeaseRequestEntry {
            name: scope.name.clone(),
            limits: numbers(&scope.limits),
            keep: [0; 3],
            need: [0; 3],
            want: [0; 3],
            yields: true,
        };
        self.scopes.iter().map(nothing).collect()
    }
}
