//! Prefill and decode apart: which requests are split, for which replicas, and what that rests on, with
//! chosen and with random fleets. A failing seed is printed.

use std::collections::BTreeSet;

use fastrand::Rng;
use throng_core::fleet::health::HealthConfig;
use throng_core::fleet::routing::{
    Choice, ExchangeReport, LEAST_SPLIT_TOKENS, LoadReport, Policy, PrefixIndex, Query, Region, ReplicaId,
    Role, Router, SiteLoad, SplitFacts, SplitVerdict,
};
use throng_core::fleet::{Demand, Dispatch};
use throng_core::scheduling::StepTime;
use throng_core::scheduling::batch::BLOCK_TOKENS;
use throng_core::scheduling::block_hash::BlockKey;
use throng_core::scheduling::block_pool::CacheNews;
use throng_core::time::{Nanos, Timestamp};

const NOW: Timestamp = Timestamp::from_ns(0);
const MS: u64 = 1_000_000;
const N_FLEETS: u64 = 20_000;

/// 10 ms a step, 0.1 ms a prompt token, 0.5 ms a sequence, 512 tokens at most.
fn step_time() -> StepTime {
    StepTime::default()
}

fn site(n_uncached: u64, n_decoding: u32) -> SiteLoad {
    SiteLoad { step_time: step_time(), n_queued: 0, n_decoding, n_uncached }
}

fn facts(n_tokens: u64, n_decoding: u32, block: Nanos) -> SplitFacts {
    SplitFacts {
        here: site(n_tokens, n_decoding),
        there: site(n_tokens, 0),
        n_blocks: n_tokens / BLOCK_TOKENS as u64,
        block,
        round_trip: Some(Nanos(0)),
    }
}

#[test]
fn splitting_pays_where_the_chunks_delay_others_by_more_than_the_transfer_takes() {
    let idle = facts(2_000, 0, Nanos(0)).estimate();
    assert_eq!((idle.here, idle.there, idle.delay), (idle.there, idle.here, Nanos(0)));
    assert!(!idle.pays(), "nobody is delayed, and another replica is no faster");
    let busy = facts(2_000, 4, Nanos::from_ms(2)).estimate();
    // 512 tokens fit into a step of 120 ms beside four sequences: 4 steps of 12 ms and 200 ms of tokens.
    assert_eq!((busy.here, busy.delay), (Nanos::from_ms(248), Nanos::from_ms(800)));
    assert_eq!((busy.there, busy.transfer), (Nanos::from_ms(240), Nanos::from_ms(250)));
    assert!(busy.pays());
    let slow_link = facts(2_000, 4, Nanos::from_ms(7)).estimate();
    assert!(!slow_link.pays(), "{slow_link:?}");
    let queued = SiteLoad { n_queued: 20_000, ..site(2_000, 0) };
    assert!(
        !SplitFacts { there: queued, ..facts(2_000, 4, Nanos(0)) }.estimate().pays(),
        "its queue is long"
    );
    let has_it = SiteLoad { n_uncached: 1, ..site(2_000, 0) };
    assert!(SplitFacts { there: has_it, ..facts(2_000, 0, Nanos(0)) }.estimate().pays(), "it was computed");
}

#[test]
fn chunks_beside_other_sequences_fit_into_the_time_of_a_step() {
    let slow = StepTime { per_prompt_token: Nanos::from_ms(2), ..step_time() };
    for (n_decoding, n_chunk) in [(0, 512), (1, 54), (40, 45), (1_000, 16)] {
        let here = SiteLoad { step_time: slow, n_queued: 0, n_decoding, n_uncached: 2_048 };
        let estimate = SplitFacts { here, ..facts(2_048, 0, Nanos(0)) }.estimate();
        // The steps one after the other.
        let (mut n_left, mut time) = (2_048_u64, 0);
        while n_left > 0 {
            let n = n_left.min(n_chunk);
            time += 10 * MS + u64::from(n_decoding) * MS / 2 + n * 2 * MS;
            n_left -= n;
        }
        assert_eq!(estimate.here, Nanos(time), "{n_decoding} decode");
    }
}

#[test]
fn huge_numbers_overflow_nothing() {
    let most = Nanos(u64::MAX);
    let step_time =
        StepTime { fixed: most, per_prompt_token: most, per_sequence: most, max_step_tokens: u32::MAX };
    let site = SiteLoad { step_time, n_queued: u64::MAX, n_decoding: u32::MAX, n_uncached: u64::MAX };
    let facts =
        SplitFacts { here: site, there: site, n_blocks: u64::MAX, block: most, round_trip: Some(most) };
    assert!(!facts.estimate().pays());
}

#[test]
fn a_role_of_another_build_counts_as_both() {
    for (text, role) in
        [("\"prefill\"", Role::Prefill), ("\"decode\"", Role::Decode), ("\"new\"", Role::Both)]
    {
        assert_eq!(serde_json::from_str::<Role>(text).expect("a role"), role);
    }
    assert_eq!((Role::default(), Role::Prefill.name()), (Role::Both, "prefill"));
}

/// A fleet of one replica for prompts and one for answers, which exchange blocks of 1 KiB.
struct Pair {
    router: Router,
    ids: [ReplicaId; 2],
    blocks: Vec<BlockKey>,
}

impl Pair {
    fn new() -> Self {
        let mut router = Router::new(Policy::LeastTtft, 0);
        let ids = ["prefill", "decode"].map(|name| router.add(name, PrefixIndex::Reported, 1_000));
        router.set_role(ids[0], Role::Prefill);
        router.set_role(ids[1], Role::Decode);
        let mut pair = Self { router, ids, blocks: (0..200).map(BlockKey).collect() };
        pair.report(0, 0, 1_024);
        pair.report(1, 8, 1_024);
        pair
    }

    fn report(&mut self, idx: usize, n_decoding: u32, block_bytes: u64) {
        let exchange = ExchangeReport { block_bytes, ..ExchangeReport::default() };
        let report = LoadReport { n_decoding, step_time: step_time(), exchange, ..LoadReport::default() };
        self.router.report(self.ids[idx], report, NOW);
    }

    fn choose(&mut self, n_tokens: u32) -> Choice {
        self.choose_at(n_tokens, NOW)
    }

    fn choose_at(&mut self, n_tokens: u32, now: Timestamp) -> Choice {
        let blocks = &self.blocks[..n_tokens as usize / BLOCK_TOKENS];
        let query =
            Query { n_tokens, blocks, session: None, pinned: None, eligible: &self.ids, regions: None };
        self.router.choose(&query, now).expect("a replica")
    }

    fn verdict(&mut self, n_tokens: u32) -> SplitVerdict {
        self.choose(n_tokens).split.expect("there are roles").verdict
    }
}

#[test]
fn a_long_prompt_is_split_and_a_short_or_cached_one_is_not() {
    let mut pair = Pair::new();
    let [prefill, decode] = pair.ids;
    let choice = pair.choose(2_000);
    assert_eq!((choice.replica, choice.prefill()), (decode, Some(prefill)));
    assert_eq!(choice.split.map(|split| split.estimate.n_tokens), Some(2_000));
    assert_eq!(pair.verdict(LEAST_SPLIT_TOKENS as u32 - 1), SplitVerdict::FewTokens);
    // Where the answer's replica has the beginning, only the rest counts.
    let stored = pair.blocks[..120].to_vec();
    pair.router.follow_cache(decode, &CacheNews { stored, ..CacheNews::default() });
    assert_eq!(pair.verdict(2_000), SplitVerdict::FewTokens);
    assert_eq!(pair.verdict(3_000), SplitVerdict::Pays);
    // The other one has all of it: its blocks are taken over as ever.
    let stored = pair.blocks.clone();
    pair.router.follow_cache(prefill, &CacheNews { stored, ..CacheNews::default() });
    let choice = pair.choose(3_000);
    assert_eq!(choice.split.map(|split| split.verdict), Some(SplitVerdict::FewTokens));
    assert_eq!(choice.holder, Some((prefill, 187)));
}

#[test]
fn requests_are_not_split_without_blocks_or_a_fit_replica_and_never_without_roles() {
    let mut pair = Pair::new();
    let [prefill, decode] = pair.ids;
    pair.report(1, 0, 1_024);
    assert_eq!(pair.verdict(2_000), SplitVerdict::Slower, "nobody decodes who could be delayed");
    pair.report(1, 8, 0);
    assert_eq!(pair.verdict(2_000), SplitVerdict::NoExchange);
    pair.report(1, 8, 1_024);
    pair.report(0, 0, 0);
    assert_eq!(pair.verdict(2_000), SplitVerdict::NoExchange);
    pair.report(0, 0, 1_024);
    let blocks = pair.blocks[..125].to_vec();
    let query = Query {
        n_tokens: 2_000,
        blocks: &blocks,
        session: None,
        pinned: None,
        eligible: &[decode],
        regions: None,
    };
    let alone = pair.router.choose(&query, NOW).expect("a replica");
    assert_eq!(alone.split.map(|split| split.verdict), Some(SplitVerdict::NoReplica));
    let all = [prefill, decode];
    let pinned = Query { pinned: Some(decode), eligible: &all, ..query };
    assert_eq!(pair.router.choose(&pinned, NOW).and_then(|choice| choice.split), None);
    let unnamed = Query { blocks: &[], eligible: &all, ..query };
    assert_eq!(pair.router.choose(&unnamed, NOW).and_then(|choice| choice.split), None);
    let abroad = Query { eligible: &all, ..query };
    pair.router.set_region(prefill, Some(Region::from("far")));
    pair.router.set_region(decode, Some(Region::from("near")));
    pair.router.measured(decode, Nanos(1));
    pair.router.measured(prefill, Nanos::from_ms(500));
    let split = pair.router.choose(&abroad, NOW).and_then(|choice| choice.split);
    assert_eq!(split.map(|split| split.verdict), Some(SplitVerdict::NoReplica), "blocks stay in a region");
    let mut pair = Pair::new();
    pair.router.set_role(pair.ids[0], Role::Both);
    assert_eq!(pair.choose(2_000).split, None);
}

#[test]
fn a_replica_for_prompts_answers_where_no_other_one_can() {
    let mut pair = Pair::new();
    let [prefill, decode] = pair.ids;
    let query = Query {
        n_tokens: 2_000,
        blocks: &[],
        session: None,
        pinned: None,
        eligible: &[prefill],
        regions: None,
    };
    let choice = pair.router.choose(&query, NOW).expect("it can");
    assert_eq!((choice.replica, choice.split), (prefill, None));
    let pinned = Query { pinned: Some(prefill), eligible: &[prefill, decode], ..query };
    assert_eq!(pair.router.choose(&pinned, NOW).map(|choice| choice.replica), Some(prefill));
}

#[test]
fn a_measured_transfer_counts_for_a_while() {
    let mut pair = Pair::new();
    let at = |ms| NOW + Nanos::from_ms(ms);
    let report = |pair: &mut Pair, n_pulled, ms| {
        let exchange = ExchangeReport {
            block_bytes: 1_024,
            n_pulled,
            block_time: Nanos::from_ms(100),
            ..Default::default()
        };
        let report = LoadReport { n_decoding: 8, exchange, ..LoadReport::default() };
        pair.router.report(pair.ids[1], report, at(ms));
    };
    let verdict = |pair: &mut Pair, ms| pair.choose_at(2_000, at(ms)).split.map(|split| split.verdict);
    report(&mut pair, 0, 0);
    assert_eq!(verdict(&mut pair, 0), Some(SplitVerdict::Pays), "nothing was taken over yet");
    report(&mut pair, 50, 10);
    assert_eq!(verdict(&mut pair, 10), Some(SplitVerdict::Slower), "its link is slow");
    report(&mut pair, 50, 60_020);
    assert_eq!(verdict(&mut pair, 60_020), Some(SplitVerdict::Pays), "it is tried again");
}

#[test]
fn a_split_prompt_is_no_load_of_the_answers_replica_and_its_time_no_measure() {
    let mut dispatch = Dispatch::new(Router::new(Policy::LeastTtft, 0), HealthConfig::default());
    let ids = ["prefill", "decode"].map(|name| dispatch.add(name, NOW));
    let exchange = ExchangeReport { block_bytes: 1_024, ..ExchangeReport::default() };
    for (id, role, n_decoding) in [(ids[0], Role::Prefill, 0), (ids[1], Role::Decode, 8)] {
        dispatch.board.be_ready(id, NOW);
        dispatch.router.set_role(id, role);
        let report = LoadReport { n_decoding, exchange, ..LoadReport::default() };
        dispatch.router.report(id, report, NOW);
    }
    let blocks: Vec<_> = (0..125).map(BlockKey).collect();
    let demand =
        Demand { n_tokens: 2_000, blocks: &blocks, session: None, pinned: None, regions: None, tried: &[] };
    let mut attempt = dispatch.place(&demand, NOW).expect("a replica");
    assert_eq!((attempt.choice.replica, attempt.choice.prefill()), (ids[1], Some(ids[0])));
    let others: Vec<_> = (1_000..1_125).map(BlockKey).collect();
    let again = dispatch.place(&Demand { blocks: &others, ..demand }, NOW).expect("a replica");
    let (first, second) = (attempt.choice.split, again.choice.split);
    let here = [first, second].map(|split| split.expect("roles").estimate.here);
    assert!(here[1].0 - here[0].0 < MS, "the first one's prompt is not in its queue: {here:?}");
    let first_part = dispatch.place_among(&demand, &[ids[0]], NOW).expect("it computes the prompt");
    assert_eq!((first_part.choice.replica, first_part.choice.split), (ids[0], None));
    dispatch.first_token(&mut attempt, Nanos::from_ms(100_000), true, NOW);
    for attempt in [attempt, again, first_part] {
        dispatch.end(attempt);
    }
    assert_eq!(ids.map(|id| (dispatch.n_running(id), dispatch.router.n_tokens(id))), [(0, 0); 2]);
}

/// A random replica as the test knows it.
struct Known {
    id: ReplicaId,
    role: Role,
    region: Option<Region>,
    report: LoadReport,
    n_cached: usize,
    is_eligible: bool,
}

impl Known {
    fn add(router: &mut Router, rng: &mut Rng, blocks: &[BlockKey]) -> Self {
        let id = router.add(&format!("{}", rng.u64(..)), PrefixIndex::Reported, 1_000);
        let role = [Role::Prefill, Role::Decode, Role::Both][rng.usize(..3)];
        let region = rng.bool().then(|| Region::from(["a", "b"][rng.usize(..2)]));
        let step_time = StepTime {
            fixed: Nanos(rng.u64(..20 * MS)),
            per_prompt_token: Nanos(rng.u64(..MS)),
            per_sequence: Nanos(rng.u64(..MS)),
            max_step_tokens: rng.u32(16..1_024),
        };
        let report = LoadReport {
            n_queued_tokens: if rng.bool() { 0 } else { rng.u64(..5_000) },
            n_decoding: rng.u32(..16),
            step_time,
            exchange: ExchangeReport { block_bytes: [0, 4_096, 4_096][rng.usize(..3)], ..Default::default() },
        };
        let n_cached = if rng.bool() { 0 } else { rng.usize(..=blocks.len()) };
        router.set_role(id, role);
        router.set_region(id, region.clone());
        router.report(id, report, NOW);
        let stored = blocks[..n_cached].to_vec();
        router.follow_cache(id, &CacheNews { stored, ..CacheNews::default() });
        Self { id, role, region, report, n_cached, is_eligible: rng.u32(..4) > 0 }
    }

    fn site(&self, n_tokens: u32, n_held: usize) -> SiteLoad {
        let n_uncached = u64::from(n_tokens).saturating_sub((n_held * BLOCK_TOKENS) as u64).max(1);
        let LoadReport { n_queued_tokens, n_decoding, step_time, .. } = self.report;
        SiteLoad { step_time, n_queued: n_queued_tokens, n_decoding, n_uncached }
    }
}

#[test]
fn random_fleets_split_only_what_pays_at_the_best_replica_for_it() {
    let first = fastrand::u64(..);
    let mut seen = BTreeSet::new();
    for seed in (0..N_FLEETS).map(|n| first.wrapping_add(n)) {
        let mut rng = Rng::with_seed(seed);
        let n_tokens = rng.u32(1..4_000);
        let blocks: Vec<_> = (0..u64::from(n_tokens) / BLOCK_TOKENS as u64).map(BlockKey).collect();
        let mut router = Router::new(Policy::LeastTtft, seed);
        let fleet: Vec<_> =
            (0..rng.usize(1..7)).map(|_| Known::add(&mut router, &mut rng, &blocks)).collect();
        let eligible: Vec<_> = fleet.iter().filter(|one| one.is_eligible).map(|one| one.id).collect();
        let query = Query {
            n_tokens,
            blocks: &blocks,
            session: None,
            pinned: None,
            eligible: &eligible,
            regions: None,
        };
        let Some(choice) = router.choose(&query, NOW) else {
            assert!(eligible.is_empty(), "seed {seed}");
            continue;
        };
        let chosen = fleet.iter().find(|one| one.id == choice.replica).expect("one of them");
        let for_prompts = |one: &&Known| one.role == Role::Prefill;
        let others = fleet.iter().filter(|one| one.is_eligible);
        let answers = others.clone().filter(|one| !for_prompts(one)).count();
        assert_eq!(for_prompts(&chosen), answers == 0, "seed {seed}: who answers");
        let has_roles = fleet.iter().any(|one| for_prompts(&one));
        let Some(split) = choice.split else {
            assert!(!has_roles || for_prompts(&chosen) || blocks.is_empty(), "seed {seed}: no reason");
            continue;
        };
        assert!(has_roles && !for_prompts(&chosen), "seed {seed}");
        let n_held = choice.holder.map_or(chosen.n_cached, |(_, n)| (n as usize).max(chosen.n_cached));
        let facts = |other: &Known| SplitFacts {
            here: chosen.site(n_tokens, n_held),
            there: other.site(n_tokens, other.n_cached),
            n_blocks: (blocks.len() - chosen.n_cached) as u64,
            block: Nanos(4_096 * 8),
            round_trip: None,
        };
        let able = others.filter(|one| for_prompts(one) && one.region == chosen.region);
        let n_able = able.clone().count();
        let bytes = chosen.report.exchange.block_bytes;
        let estimates = able
            .filter(|one| bytes > 0 && one.report.exchange.block_bytes == bytes)
            .map(|one| (facts(one).estimate(), one.id));
        let best = estimates.min_by_key(|(estimate, id)| (estimate.there.0 + estimate.transfer.0, *id));
        let n_missing = chosen.site(n_tokens, n_held).n_uncached;
        let expected = match best {
            _ if n_missing < LEAST_SPLIT_TOKENS => (SplitVerdict::FewTokens, None),
            _ if n_able == 0 => (SplitVerdict::NoReplica, None),
            None => (SplitVerdict::NoExchange, None),
            Some((estimate, id)) => {
                let saves = estimate.here.0 + estimate.delay.0 > estimate.there.0 + estimate.transfer.0;
                (if saves { SplitVerdict::Pays } else { SplitVerdict::Slower }, Some(id))
            }
        };
        assert_eq!((split.verdict, split.prefill), expected, "seed {seed}: {split:?}");
        seen.insert(split.verdict);
        let ticket = router.start(&choice, &query);
        router.end(ticket);
        assert_eq!(router.n_tokens(choice.replica), 0, "seed {seed}");
    }
    assert_eq!(seen.len(), 5, "each verdict occurs: {seen:?}");
}
