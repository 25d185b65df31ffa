//! The router of one model: its replicas, their load, their caches, and the policy. Does not know which
//! replicas are healthy: each query names the eligible ones.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::load::{Load, LoadReport, ReplicaId, Ticket};
use super::places::{Place, Region, RegionOffer};
use super::policy::Policy;
use super::prefixes::{CachedPrefixes, PrefixIndex};
use super::split::{Role, SplitDecision, SplitFacts};
use crate::scheduling::batch::BLOCK_TOKENS;
use crate::scheduling::block_hash::BlockKey;
use crate::scheduling::block_pool::CacheNews;
use crate::scheduling::block_store::LEAST_PULLED_BLOCKS;
use crate::time::{Nanos, Timestamp};

/// A request that needs a replica.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// Number of prompt tokens, including those that a continued stream has already generated.
    pub n_tokens: u32,
    /// Names of the prompt's full blocks, in order.
    pub blocks: &'a [BlockKey],
    /// Name of the requests that begin alike, as the client says, to which this one belongs.
    pub session: Option<BlockKey>,
    /// Replica that the client asked for; no other one is chosen then.
    pub pinned: Option<ReplicaId>,
    /// Replicas that may be chosen.
    pub eligible: &'a [ReplicaId],
    /// Regions that the request is bound to; a replica without a region is in none.
    pub regions: Option<&'a [Region]>,
}

/// Result of the router for a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The chosen replica.
    pub replica: ReplicaId,
    /// Number of prompt tokens that the replica is assumed to have cached.
    pub n_cached_tokens: u32,
    /// The predicted time to first token at the replica.
    pub ttft: Nanos,
    /// Predicted time to first token of a replica of default speed ([`StepTime::default`]): the measured time
    /// as a share of it compares the speeds of replicas.
    pub usual_ttft: Nanos,
    /// Another replica that has at least [`LEAST_PULLED_BLOCKS`] more of the prompt in its cache, and its
    /// number of blocks: the chosen one may take them over.
    pub holder: Option<(ReplicaId, u32)>,
    /// Whether another replica computes the prompt first, and why; `None` where no replica has that role.
    pub split: Option<SplitDecision>,
}

impl Choice {
    /// The replica that computes the prompt, if that is another one.
    pub fn prefill(&self) -> Option<ReplicaId> {
        self.split.and_then(|split| split.prefill())
    }
}

#[derive(Debug)]
struct Replica {
    name: String,
    place: Place,
    role: Role,
    load: Load,
    knowledge: PrefixIndex,
    cached: CachedPrefixes,
    /// Sessions whose last request went to this replica.
    sessions: CachedPrefixes,
    /// Number of the last choice of this replica.
    chosen_at: u64,
}

impl Replica {
    /// Number of blocks at the beginning of the prompt after which the replica can go on.
    fn n_cached(&self, query: &Query<'_>) -> usize {
        let has_states = self.knowledge == PrefixIndex::Reported && self.load.state_blocks() > 0;
        if has_states { self.cached.n_with_state(query.blocks) } else { self.cached.n_cached(query.blocks) }
    }
}

/// Maximum number of sessions that are remembered for each replica.
const MAX_SESSIONS: usize = 4_096;

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

    /// Adds a replica; at most `max_blocks` names of its cached blocks are kept.
    pub fn add(&mut self, name: &str, knowledge: PrefixIndex, max_blocks: usize) -> ReplicaId {
        let id = ReplicaId(self.n_added);
        self.n_added += 1;
        let cached = CachedPrefixes::new(max_blocks);
        let (name, place, load) = (name.to_owned(), Place::default(), Load::default());
        let sessions = CachedPrefixes::new(MAX_SESSIONS);
        let role = Role::default();
        let replica = Replica { name, place, role, load, knowledge, cached, sessions, chosen_at: 0 };
        self.replicas.insert(id, replica);
        id
    }

    /// Sets the role of a replica.
    pub fn set_role(&mut self, replica: ReplicaId, role: Role) {
        if let Some(replica) = self.replicas.get_mut(&replica) {
            replica.role = role;
        }
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

    /// Removes a replica; tickets for it that are returned later change nothing.
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
            replica.sessions.clear();
        }
    }

    /// Number of blocks in a replica's cache, as far as reported.
    pub fn n_cached_blocks(&self, replica: ReplicaId) -> usize {
        self.replicas.get(&replica).map_or(0, |replica| replica.cached.len())
    }

    /// Number of blocks at the beginning of a prompt that a replica is known to have.
    pub fn n_held(&self, replica: ReplicaId, blocks: &[BlockKey]) -> usize {
        self.replicas.get(&replica).map_or(0, |replica| replica.cached.n_cached(blocks))
    }

    /// Whether the policy depends on the cached blocks of replicas.
    pub fn uses_blocks(&self) -> bool {
        self.policy == Policy::LeastTtft
    }

    /// Number of tokens of the requests sent to a replica that have not ended.
    pub fn n_tokens(&self, replica: ReplicaId) -> u64 {
        self.replicas.get(&replica).map_or(0, |replica| replica.load.n_tokens())
    }

    /// Chooses the replica of a request; `None` if no known replica is eligible.
    pub fn choose(&mut self, query: &Query<'_>, now: Timestamp) -> Option<Choice> {
        let candidates = self.in_best_region(self.candidates(query), query, now);
        let mut held = Vec::new();
        let id = match self.policy {
            Policy::LeastTtft => {
                held = n_cached_of(&candidates, query);
                least_ttft(&candidates, &held, query, now)?
            }
            policy => {
                let ids: Vec<ReplicaId> = candidates.iter().map(|(id, _)| *id).collect();
                match policy {
                    Policy::RoundRobin => self.following(&ids)?,
                    Policy::LeastTokens => self.least_tokens(&ids)?,
                    Policy::PowerOfTwo | Policy::LeastTtft => {
                        let two = self.two_of(&ids);
                        self.least_tokens(&two)?
                    }
                }
            }
        };
        let holder = self.holder(id, query, held);
        let split = self.split(id, holder, query, now);
        let choice = Choice { holder, split, ..self.choice(id, query, now)? };
        self.last = Some(id);
        self.n_choices += 1;
        self.replicas.get_mut(&id)?.chosen_at = self.n_choices;
        Some(choice)
    }

    /// Notes that the request was sent as chosen. The ticket must be returned to [`Router::end`].
    pub fn start(&mut self, choice: &Choice, query: &Query<'_>) -> Ticket {
        let n_tokens = u64::from(query.n_tokens.max(1));
        let n_uncached = match choice.prefill() {
            Some(_) => 1,
            None => n_tokens.saturating_sub(u64::from(choice.n_cached_tokens)).max(1),
        };
        let ticket = Ticket { replica: choice.replica, n_tokens, n_uncached };
        if let Some(session) = query.session {
            self.move_session(session, choice.replica);
        }
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

    /// The replica with the most of the prompt, if that is worth a transfer to the chosen one. It may be one
    /// that takes no requests. Only replicas that report their caches are named. `held` has the numbers of
    /// cached blocks that are known already.
    fn holder(
        &self,
        chosen: ReplicaId,
        query: &Query<'_>,
        mut held: Vec<(ReplicaId, usize)>,
    ) -> Option<(ReplicaId, u32)> {
        if query.blocks.len() < LEAST_PULLED_BLOCKS {
            return None;
        }
        held.sort_unstable();
        let mut known = held.into_iter().peekable();
        let (mut own, mut most) = (0, None);
        for (id, replica) in &self.replicas {
            while known.next_if(|(other, _)| other < id).is_some() {}
            let n_cached = match known.next_if(|(other, _)| other == id) {
                Some((_, n_cached)) => n_cached,
                None => replica.n_cached(query),
            };
            if *id == chosen {
                own = n_cached;
                continue;
            }
            let is_near = query.regions.is_none_or(|regions| replica.place.is_in(regions));
            if replica.knowledge == PrefixIndex::Reported && is_near {
                most = most.max(Some((n_cached, Reverse(*id))));
            }
        }
        let (n_blocks, Reverse(id)) = most?;
        (n_blocks >= own + LEAST_PULLED_BLOCKS).then_some((id, n_blocks as u32))
    }

    /// Whether a replica for prompts computes the prompt of an answer of `chosen`. The choice of a pinned
    /// request is the client's, and one for which no blocks are known cannot be compared.
    fn split(
        &self,
        chosen: ReplicaId,
        holder: Option<(ReplicaId, u32)>,
        query: &Query<'_>,
        now: Timestamp,
    ) -> Option<SplitDecision> {
        let own = self.replicas.get(&chosen)?;
        let is_for_prompts = |replica: &Replica| replica.role == Role::Prefill;
        let may_be = self.uses_blocks() && query.pinned.is_none() && !query.blocks.is_empty();
        if !may_be || is_for_prompts(own) || !self.replicas.values().any(is_for_prompts) {
            return None;
        }
        let n_held = own.n_cached(query).max(holder.map_or(0, |(_, n)| n as usize));
        let n_tokens = u64::from(query.n_tokens);
        let n_uncached = |n_blocks: usize| n_tokens.saturating_sub((n_blocks * BLOCK_TOKENS) as u64).max(1);
        let n_own = own.n_cached(query);
        let (n_bytes, block) = (own.load.block_bytes(), own.load.block_time(now));
        let facts = |id: &ReplicaId| {
            let other = self.replicas.get(id).filter(|other| is_for_prompts(other))?;
            // Blocks go no farther than a region, and prompts only where they may.
            if other.place.region != own.place.region {
                return None;
            }
            let facts = (other.load.block_bytes() == n_bytes).then(|| SplitFacts {
                here: own.load.site(n_uncached(n_held), now),
                there: other.load.site(n_uncached(other.n_cached(query)), now),
                n_blocks: query.blocks.len().saturating_sub(n_own) as u64 + own.load.state_blocks(),
                block,
                round_trip: own.place.round_trip().max(other.place.round_trip()),
            });
            Some((*id, facts))
        };
        let offers: Vec<_> = query.eligible.iter().filter_map(facts).collect();
        Some(SplitDecision::of(n_uncached(n_held), n_bytes > 0, &offers))
    }

    fn move_session(&mut self, session: BlockKey, to: ReplicaId) {
        for (id, replica) in &mut self.replicas {
            match *id == to {
                true => replica.sessions.publish(&[session]),
                false => replica.sessions.withdraw(&session),
            }
        }
    }

    fn candidates(&self, query: &Query<'_>) -> Vec<(ReplicaId, &Replica)> {
        let known = query.eligible.iter().filter_map(|id| Some((*id, self.replicas.get(id)?)));
        let may = |(id, replica): &(ReplicaId, &Replica)| {
            query.regions.is_none_or(|regions| replica.place.is_in(regions))
                && query.pinned.is_none_or(|pinned| pinned == *id)
        };
        let may_all: Vec<_> = known.filter(may).collect();
        // A replica for prompts answers only where no other one can.
        let is_for_answers = |(_, replica): &&(ReplicaId, &Replica)| replica.role != Role::Prefill;
        if may_all.iter().all(|one| is_for_answers(&one)) || !may_all.iter().any(|one| is_for_answers(&one)) {
            return may_all;
        }
        may_all.iter().filter(is_for_answers).copied().collect()
    }

    /// Candidates of the region with the least predicted time to first token, round trip included. So
    /// requests stay in the nearest region until the predicted wait there exceeds that of another one by more
    /// than the difference in round trips.
    fn in_best_region<'a>(
        &self,
        mut candidates: Vec<(ReplicaId, &'a Replica)>,
        query: &Query<'_>,
        now: Timestamp,
    ) -> Vec<(ReplicaId, &'a Replica)> {
        let first = candidates.first().and_then(|(_, replica)| replica.place.region.as_ref());
        if candidates.iter().all(|(_, replica)| replica.place.region.as_ref() == first) {
            return candidates;
        }
        let mut offers: BTreeMap<Option<&Region>, RegionOffer> = BTreeMap::new();
        for (id, replica) in &candidates {
            let Some(choice) = self.choice(*id, query, now) else { continue };
            let offer = offers.entry(replica.place.region.as_ref()).or_default();
            offer.add(choice.ttft, self.place(*id).1);
        }
        let first_token = |(region, offer): &(&Option<&Region>, &RegionOffer)| {
            let is_home = region.is_some_and(|region| self.home.as_ref() == Some(region));
            (offer.first_token(is_home), !is_home)
        };
        let best = offers.iter().min_by_key(first_token).and_then(|(region, _)| *region).cloned();
        candidates.retain(|(_, replica)| replica.place.region.as_ref() == best.as_ref());
        candidates
    }

    fn choice(&self, id: ReplicaId, query: &Query<'_>, now: Timestamp) -> Option<Choice> {
        let replica = self.replicas.get(&id)?;
        let n_cached = n_cached_tokens(replica.n_cached(query), query);
        let n_uncached = u64::from(query.n_tokens - n_cached).max(1);
        Some(Choice {
            replica: id,
            n_cached_tokens: n_cached,
            ttft: replica.load.predicted_ttft(n_uncached, now),
            usual_ttft: replica.load.usual_ttft(n_uncached, now),
            holder: None,
            split: None,
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

/// Prompt tokens that this number of cached blocks saves. At least one token is computed, for its logits.
fn n_cached_tokens(n_blocks: usize, query: &Query<'_>) -> u32 {
    let n_cached = n_blocks.saturating_mul(BLOCK_TOKENS);
    u32::try_from(n_cached).unwrap_or(u32::MAX).min(query.n_tokens.saturating_sub(1))
}

/// Number of cached blocks of the prompt at each candidate. The look-ups do not wait for each other.
fn n_cached_of(candidates: &[(ReplicaId, &Replica)], query: &Query<'_>) -> Vec<(ReplicaId, usize)> {
    candidates.iter().map(|(id, replica)| (*id, replica.n_cached(query))).collect()
}

/// The candidate with the least predicted time to first token, where one that has the request's session
/// counts as having all of its prompt cached: the blocks may just be computed for another request of the
/// session.
fn least_ttft(
    candidates: &[(ReplicaId, &Replica)],
    held: &[(ReplicaId, usize)],
    query: &Query<'_>,
    now: Timestamp,
) -> Option<ReplicaId> {
    let key = |((_, replica), (_, n_blocks)): &(&(ReplicaId, &Replica), &(ReplicaId, usize))| {
        let has_session = query.session.is_some_and(|session| replica.sessions.n_cached(&[session]) > 0);
        let n_uncached = match has_session {
            true => 1,
            false => u64::from(query.n_tokens - n_cached_tokens(*n_blocks, query)).max(1),
        };
        (replica.load.predicted_ttft(n_uncached, now), replica.load.n_tokens(), replica.chosen_at)
    };
    candidates.iter().zip(held).min_by_key(key).map(|((id, _), _)| *id)
}
