//! Grants gateways shares of each limit from the part that no gateway has. Does not know how it is reached;
//! the clock is the pool's own.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Amounts, LEASE, LeaseReply, LeaseReplyEntry, LeaseRequest, LeaseRequestEntry};

const LEASE_MS: u64 = LEASE.0 / 1_000_000;
/// Time for which the usage of a lost gateway counts, until its minute is over.
const HOLD_MS: u64 = LEASE_MS + 61_000;
/// Time without any gateway after which some may have continued without the pool.
const GAP_MS: u64 = 1_500;
/// Time without grants after such a gap.
const SETTLING_MS: u64 = 2_000;
/// Time after its last question from which a gateway is not waited for.
const PRESENT_MS: u64 = 1_000;
/// Time for which a scope counts as short after a gateway requested more than was left.
const SHORT_MS: u64 = 2_000;
/// Time for which the report of a gateway about a scope that is short counts.
const YIELDED_MS: u64 = 150;
/// Maximum number of short scopes in an answer.
const MAX_SHORT: usize = 256;

/// Shares of all gateways.
#[derive(Debug, Clone, Default)]
pub struct Pool {
    epoch: u64,
    opens_at_ms: u64,
    last_ms: u64,
    gateways: BTreeMap<String, Gateway>,
    scopes: BTreeMap<Arc<str>, BTreeMap<String, Share>>,
    /// Start and end of the time in which each scope is short.
    short: BTreeMap<Arc<str>, (u64, u64)>,
}

#[derive(Debug, Clone, Copy)]
struct Gateway {
    seen_ms: u64,
    number: u64,
}

#[derive(Debug, Clone, Copy)]
struct Share {
    amounts: Amounts,
    yielded_ms: u64,
}

impl Pool {
    /// Answers a question; `None` if a later one of this gateway was answered before.
    pub fn exchange(&mut self, me: &str, ask: &LeaseRequest, now_ms: u64) -> Option<LeaseReply> {
        let now = now_ms.max(self.last_ms);
        if self.gateways.get(me).is_some_and(|gateway| ask.number <= gateway.number) {
            return None;
        }
        if now - self.last_ms > GAP_MS || self.epoch == 0 {
            self.epoch = now;
            self.opens_at_ms = now + SETTLING_MS;
        }
        self.last_ms = now;
        self.gateways.retain(|_, gateway| now - gateway.seen_ms < HOLD_MS);
        let seen_ms = if ask.is_last { now.saturating_sub(LEASE_MS) } else { now };
        self.gateways.insert(me.to_owned(), Gateway { seen_ms, number: ask.number });
        let is_settling = now < self.opens_at_ms;
        let entries = ask.entries.iter().map(|entry| self.answer(me, entry, is_settling, now)).collect();
        self.short.retain(|_, (_, until)| now < *until);
        let short = self.short.keys().take(MAX_SHORT).cloned().collect();
        let n_gateways = self.gateways.values().filter(|gateway| now - gateway.seen_ms < LEASE_MS).count();
        Some(LeaseReply { n_gateways: n_gateways as u64, epoch: self.epoch, is_settling, entries, short })
    }

    fn answer(
        &mut self,
        me: &str,
        entry: &LeaseRequestEntry,
        is_settling: bool,
        now: u64,
    ) -> LeaseReplyEntry {
        let short = self.short.get(&entry.name).filter(|(_, until)| now < *until).copied();
        let shares = self.scopes.entry(entry.name.clone()).or_default();
        shares.retain(|gateway, _| self.gateways.contains_key(gateway));
        let (mut others, mut is_final) = ([0; 3], short.is_some());
        for (gateway, share) in shares.iter().filter(|(gateway, _)| *gateway != me) {
            let age = now - self.gateways[gateway].seen_ms;
            others[0] += share.amounts[0];
            others[1] += share.amounts[1];
            // Requests end with their gateway.
            others[2] += if age < LEASE_MS { share.amounts[2] } else { 0 };
            let since = short.map_or(u64::MAX, |(since, _)| since.max(now.saturating_sub(YIELDED_MS)));
            is_final &= age >= PRESENT_MS || share.amounts == [0; 3] || share.yielded_ms >= since;
        }
        let is_alone = shares.keys().all(|gateway| gateway == me);
        let (mut told, mut is_lacking) = (LeaseReplyEntry::default(), false);
        for (k, limit) in entry.limits.into_iter().enumerate() {
            let Some(limit) = limit else { continue };
            let free = limit.saturating_sub(others[k].saturating_add(entry.keep[k]));
            let free = if is_settling { 0 } else { free };
            let needed = entry.need[k].min(free);
            let wanted = if short.is_some() { 0 } else { entry.want[k].min(free - needed) };
            is_lacking |= needed < entry.need[k];
            told.share[k] = entry.keep[k] + needed + wanted;
            told.free[k] = free - needed - wanted;
        }
        told.is_final = !is_settling && (is_final || is_alone);
        let yielded_ms = if entry.yields { now } else { 0 };
        shares.insert(me.to_owned(), Share { amounts: told.share, yielded_ms });
        if is_lacking && !is_settling {
            let since = short.map_or(now, |(since, _)| since);
            self.short.insert(entry.name.clone(), (since, now + SHORT_MS));
        }
        told
    }
}
