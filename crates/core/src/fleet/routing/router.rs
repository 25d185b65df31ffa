//! The router of one model: its replicas, their load, their caches, and the policy. Does not know which
//! replicas are healthy: each query names the eligible ones.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::load::{Load, LoadReport, ReplicaId, Ticket};
use super::places::{Place, Region, RegionOffer};
use super::policy::Policy;
use super::prefixes::{CachedPrefixes, PrefixIndex};
use crate::scheduling::batch::BLOCK_TOKENS;
use crate::scheduling::block_hash::BlockKey;
use crate::scheduling::block_pool::CacheNews;
use crate::time::{Nanos, Timestamp};

/// A request that needs a replica.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// Number of prompt tokens, including those that a continued stream has already generated.
    pub n_tokens: u32,
    /// Names of the prompt's full blocks, in order.
    pub blocks: &'a [BlockKey],
    /// Replica that the client asked for; no other one is chosen then.
    pub pinned: Option<ReplicaId>,
    /// Replicas that may be chosen.
    pub eligible: &'a [ReplicaId],
    /// Regions that the request is bound to; a replica without a region is in none.
    pub regions: Option<&'a [Region]>,
}

/// The answer to a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The chosen replica.
    pub replica: ReplicaId,
    /// Prompt tokens that the replica is assumed to have cached.
    pub n_cached_tokens: u32,
    /// The predicted time to first token at the replica.
    pub ttft: Nanos,
    /// The same for a replica of default speed ([`StepTime::default`]): the measured time as a share of
    /// this compares the speeds of replicas.
    pub usual_ttft: Nanos,
}

#[derive(Debug)]
struct Replica {
    name: String,
    place: Place,
    load: Load,
    knowledge: PrefixIndex,
    cached: CachedPrefixes,
    /// Number of the last choice of this replica.
    chosen_at: u64,
}

/// Chooses replicas. Each choice costs a lookup of the prompt's blocks in each eligible replica.
#[derive(Debug)]
pub struct Router {
    policy: Policy,
    home: Option<Region>,
    replicas: BTreeMap<ReplicaId, Replica>,
    n_added: u32,
    n_choices: u64,
    last: Option<ReplicaId>,
    random: u64,
}

impl Router {
    /// Creates a router without replicas. The seed is for [`Policy::PowerOfTwo`].
    pub fn new(policy: Policy, seed: u64) -> Self {
        let (home, replicas) = (None, BTreeMap::new());
        Self { policy, home, replicas, n_added: 0, n_choices: 0, last: None, random: seed }
    }

    /// Sets the router's own region `home`, whose replicas count as having no round trip; without one,
    /// every region counts with its measured round trip.
    pub fn at(self, home: Option<Region>) -> Self {
        Self { home, ..self }
    }

    /// Adds a replica, of whose cache at most `max_blocks` names are kept.
    pub fn add(&mut self, name: &str, knowledge: PrefixIndex, max_blocks: usize) -> ReplicaId {
        let id = ReplicaId(self.n_added);
        self.n_added += 1;
        let cached = CachedPrefixes::new(max_blocks);
        let (name, place, load) = (name.to_owned(), Place::default(), Load::default());
        self.replicas.insert(id, Replica { name, place, load, knowledge, cached, chosen_at: 0 });
        id
    }

    /// Sets the region of a replica.
    pub fn set_region(&mut self, replica: ReplicaId, region: Option<Region>) {
        if let Some(replica) = self.replicas.get_mut(&replica) {
            replica.place.region = region;
        }
    }

    /// Notes a round trip to a replica, measured with a request without work.
    pub fn measured(&mut self, replica: ReplicaId, round_trip: Nanos) {
        if let Some(replica) = self.replicas.get_mut(&replica) {
            replica.place.measured(round_trip);
        }
    }

    /// Name of a replica; `None` if it was removed.
    pub fn name(&self, replica: ReplicaId) -> Option<&str> {
        self.replicas.get(&replica).map(|replica| replica.name.as_str())
    }

    /// The region of a replica, and the shortest of the latest round trips to it.
    pub fn place(&self, replica: ReplicaId) -> (Option<Region>, Option<Nanos>) {
        let place = self.replicas.get(&replica).map(|replica| &replica.place);
        place.map_or((None, None), |place| (place.region.clone(), place.round_trip()))
    }

    /// Whether these regions exclude all replicas that a request could go to.
    pub fn excludes_all(&self, regions: &[Region], pinned: Option<&str>) -> bool {
        let meant = |replica: &&Replica| pinned.is_none_or(|name| replica.name == name);
        let mut meant = self.replicas.values().filter(meant).peekable();
        meant.peek().is_some() && meant.all(|replica| !replica.place.is_in(regions))
    }

    /// Removes a replica; tickets for it that come back later change nothing.
    pub fn remove(&mut self, replica: ReplicaId) {
        self.replicas.remove(&replica);
    }

    /// The replica with this name.
    pub fn named(&self, name: &str) -> Option<ReplicaId> {
        self.replicas.iter().find(|(_, replica)| replica.name == name).map(|(id, _)| *id)
    }

    /// Applies a replica's report about its load.
    pub fn report(&mut self, replica: ReplicaId, report: LoadReport, now: Timestamp) {
        if let Some(replica) = self.replicas.get_mut(&replica) {
            replica.load.report(report, now);
        }
    }

    /// Applies a replica's report about its cache. From the first one on, only its reports count.
    pub fn follow_cache(&mut self, replica: ReplicaId, news: &CacheNews) {
        if let Some(replica) = self.replicas.get_mut(&replica) {
            if replica.knowledge == PrefixIndex::Inferred {
                replica.knowledge = PrefixIndex::Reported;
                replica.cached.clear();
            }
            replica.cached.follow(news);
        }
    }

    /// Clears the cached prefixes of a replica that was started anew or replaced. It may not report its
    /// cache any more.
    pub fn forget_cache(&mut self, replica: ReplicaId) {
        if let Some(replica) = self.replicas.get_mut(&replica) {
            replica.knowledge = PrefixIndex::Inferred;
            replica.cached.clear();
        }
    }

    /// Number of blocks that a replica is known to have cached.
    pub fn n_cached_blocks(&self, replica: ReplicaId) -> usize {
        self.replicas.get(&replica).map_or(0, |replica| replica.cached.len())
    }

    /// Whether the policy depends on the cached blocks of replicas.
    pub fn uses_blocks(&self) -> bool {
        self.policy == Policy::LeastTtft
    }

    /// Tokens of the requests sent to a replica that have not ended.
    pub fn n_tokens(&self, replica: ReplicaId) -> u64 {
        self.replicas.get(&replica).map_or(0, |replica| replica.load.n_tokens())
    }

    /// Chooses the replica of a request; `None` if no known replica is eligible.
    pub fn choose(&mut self, query: &Query<'_>, now: Timestamp) -> Option<Choice> {
        let candidates = self.in_best_region(self.candidates(query), query, now);
        let id = match self.policy {
            Policy::RoundRobin => self.following(&candidates)?,
            Policy::LeastTokens => self.least_tokens(&candidates)?,
            Policy::PowerOfTwo => {
                let two = self.two_of(&candidates);
                self.least_tokens(&two)?
            }
            Policy::LeastTtft => {
                let key = |id: &ReplicaId| {
                    self.choice(*id, query, now).map(|choice| (choice.ttft, self.load_key(*id)))
                };
                candidates.iter().copied().min_by_key(key)?
            }
        };
        let choice = self.choice(id, query, now)?;
        self.last = Some(id);
        self.n_choices += 1;
        self.replicas.get_mut(&id)?.chosen_at = self.n_choices;
        Some(choice)
    }

    /// Notes that the request was sent as chosen. The ticket must be given back to [`Router::end`].
    pub fn start(&mut self, choice: &Choice, query: &Query<'_>) -> Ticket {
        let n_tokens = u64::from(query.n_tokens.max(1));
        let n_uncached = n_tokens.saturating_sub(u64::from(choice.n_cached_tokens)).max(1);
        let ticket = Ticket { replica: choice.replica, n_tokens, n_uncached };
        if let Some(replica) = self.replicas.get_mut(&choice.replica) {
            replica.load.start(&ticket);
            if replica.knowledge == PrefixIndex::Inferred {
                replica.cached.publish(query.blocks);
            }
        }
        ticket
    }

    /// Notes the first token of a request: its prompt is no longer in the queue.
    pub fn first_token(&mut self, ticket: &mut Ticket) {
        if let Some(replica) = self.replicas.get_mut(&ticket.replica) {
            replica.load.first_token(ticket);
        }
    }

    /// Ends a request, successful or not.
    pub fn end(&mut self, ticket: Ticket) {
        if let Some(replica) = self.replicas.get_mut(&ticket.replica) {
            replica.load.end(&ticket);
        }
    }

    fn candidates(&self, query: &Query<'_>) -> Vec<ReplicaId> {
        let may = |id: &ReplicaId| {
            let replica = self.replicas.get(id);
            let is_permitted =
                |replica: &Replica| query.regions.is_none_or(|regions| replica.place.is_in(regions));
            replica.is_some_and(is_permitted) && query.pinned.is_none_or(|pinned| pinned == *id)
        };
        query.eligible.iter().copied().filter(may).collect()
    }

    /// Candidates of the region with the least predicted time to first token, round trip included. So
    /// requests stay in the nearest region until the predicted wait there exceeds that of another one by
    /// more than the difference in round trips.
    fn in_best_region(
        &self,
        mut candidates: Vec<ReplicaId>,
        query: &Query<'_>,
        now: Timestamp,
    ) -> Vec<ReplicaId> {
        let region_of = |id: &ReplicaId| self.replicas.get(id).and_then(|known| known.place.region.as_ref());
        let first = candidates.first().and_then(region_of);
        if candidates.iter().all(|id| region_of(id) == first) {
            return candidates;
        }
        let mut offers: BTreeMap<Option<&Region>, RegionOffer> = BTreeMap::new();
        for id in &candidates {
            let Some(choice) = self.choice(*id, query, now) else { continue };
            offers.entry(region_of(id)).or_default().add(choice.ttft, self.place(*id).1);
        }
        let first_token = |(region, offer): &(&Option<&Region>, &RegionOffer)| {
            let is_home = region.is_some_and(|region| self.home.as_ref() == Some(region));
            (offer.first_token(is_home), !is_home)
        };
        let best = offers.iter().min_by_key(first_token).and_then(|(region, _)| *region).cloned();
        candidates.retain(|id| region_of(id) == best.as_ref());
        candidates
    }

    fn choice(&self, id: ReplicaId, query: &Query<'_>, now: Timestamp) -> Option<Choice> {
        let replica = self.replicas.get(&id)?;
        let n_cached = replica.cached.n_cached(query.blocks).saturating_mul(BLOCK_TOKENS);
        // At least one token is computed, for its logits.
        let n_cached = u32::try_from(n_cached).unwrap_or(u32::MAX).min(query.n_tokens.saturating_sub(1));
        let n_uncached = u64::from(query.n_tokens - n_cached).max(1);
        Some(Choice {
            replica: id,
            n_cached_tokens: n_cached,
            ttft: replica.load.predicted_ttft(n_uncached, now),
            usual_ttft: replica.load.usual_ttft(n_uncached, now),
        })
    }

    /// Sort key of a replica: its load, then the number of its last choice, so that idle replicas take
    /// turns.
    fn load_key(&self, id: ReplicaId) -> Option<(u64, u64)> {
        self.replicas.get(&id).map(|replica| (replica.load.n_tokens(), replica.chosen_at))
    }

    fn least_tokens(&self, candidates: &[ReplicaId]) -> Option<ReplicaId> {
        candidates.iter().copied().min_by_key(|id| self.load_key(*id))
    }

    fn following(&self, candidates: &[ReplicaId]) -> Option<ReplicaId> {
        candidates.iter().copied().min_by_key(|id| (Reverse(Some(*id) > self.last), *id))
    }

    /// Two different random candidates, or all if there are fewer.
    fn two_of(&mut self, candidates: &[ReplicaId]) -> Vec<ReplicaId> {
        if candidates.len() <= 2 {
            return candidates.to_vec();
        }
        let first = self.below(candidates.len());
        let second = (first + 1 + self.below(candidates.len() - 1)) % candidates.len();
        vec![candidates[first], candidates[second]]
    }

    /// A random number below `bound` by SplitMix64.
    fn below(&mut self, bound: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_ns(0);

    #[test]
    fn a_cached_prefix_wins_until_the_queue_behind_it_is_longer() {
        let mut router = Router::new(Policy::LeastTtft, 0);
        let ids = ["a", "b"].map(|name| router.add(name, PrefixIndex::Inferred, 100));
        let blocks: Vec<_> = (0..10).map(BlockKey).collect();
        let n_tokens = 10 * BLOCK_TOKENS as u32;
        let query = Query { n_tokens, blocks: &blocks, pinned: None, eligible: &ids, regions: None };
        let mut first = router.choose(&query, NOW).map(|choice| router.start(&choice, &query)).unwrap();
        let owner = first.replica();
        router.first_token(&mut first);
        let again = router.choose(&query, NOW).unwrap();
        assert_eq!((again.replica, again.n_cached_tokens), (owner, n_tokens - 1));
        let step_time = crate::scheduling::StepTime::default();
        router.report(owner, LoadReport { n_queued_tokens: 100_000, n_decoding: 1, step_time }, NOW);
        assert_ne!(router.choose(&query, NOW).unwrap().replica, owner);
        let later = NOW + crate::fleet::routing::REPORT_LIFETIME + Nanos(1);
        assert_eq!(router.choose(&query, later).unwrap().replica, owner, "old reports say nothing");
        router.end(first);
        assert_eq!(router.n_tokens(owner), 0);
    }

    #[test]
    fn what_a_replica_says_of_its_cache_replaces_what_was_sent() {
        let mut router = Router::new(Policy::LeastTtft, 0);
        let id = router.add("a", PrefixIndex::Inferred, 100);
        let blocks: Vec<_> = (0..4).map(BlockKey).collect();
        let query = Query { n_tokens: 65, blocks: &blocks, pinned: None, eligible: &[id], regions: None };
        let n_cached = |router: &mut Router| router.choose(&query, NOW).unwrap().n_cached_tokens;
        let first = router.choose(&query, NOW).unwrap();
        let ticket = router.start(&first, &query);
        router.end(ticket);
        assert_eq!((first.n_cached_tokens, n_cached(&mut router)), (0, 64));
        let (stored, removed) = (blocks[..3].to_vec(), Vec::new());
        router.follow_cache(id, &CacheNews { is_snapshot: false, stored, removed });
        assert_eq!(n_cached(&mut router), 48);
        router.follow_cache(id, &CacheNews { removed: vec![blocks[1]], ..CacheNews::default() });
        let chosen = router.choose(&query, NOW).unwrap();
        let ticket = router.start(&chosen, &query);
        router.end(ticket);
        assert_eq!(
            (n_cached(&mut router), router.n_cached_blocks(id)),
            (16, 2),
            "what is sent says nothing now"
        );
        router.forget_cache(id);
        assert_eq!((n_cached(&mut router), router.n_cached_blocks(id)), (0, 0));
    }

    #[test]
    fn pins_and_turns() {
        let mut router = Router::new(Policy::RoundRobin, 0);
        let ids = ["a", "b", "c"].map(|name| router.add(name, PrefixIndex::Reported, 1));
        let query = Query { n_tokens: 1, blocks: &[], pinned: None, eligible: &ids, regions: None };
        let turns: Vec<_> = (0..4).map(|_| router.choose(&query, NOW).unwrap().replica).collect();
        assert_eq!(turns, [ids[0], ids[1], ids[2], ids[0]]);
        let pinned = Query { pinned: router.named("c"), ..query };
        assert_eq!(router.choose(&pinned, NOW).unwrap().replica, ids[2]);
        router.remove(ids[2]);
        assert_eq!((router.choose(&pinned, NOW), router.named("c")), (None, None));
    }
}
