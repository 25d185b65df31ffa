//! The router of one model: cached prefixes, sessions, holders of blocks, pins and turns.

use throng_core::fleet::routing::{LoadReport, Policy, PrefixIndex, Query, REPORT_LIFETIME, Router};
use throng_core::scheduling::batch::BLOCK_TOKENS;
use throng_core::scheduling::block_hash::BlockKey;
use throng_core::scheduling::block_pool::CacheNews;
use throng_core::time::{Nanos, Timestamp};

const NOW: Timestamp = Timestamp::from_ns(0);

#[test]
fn a_session_stays_where_it_is_until_the_queue_there_is_longer_than_its_prompt() {
    let mut router = Router::new(Policy::LeastTtft, 0);
    let ids = ["a", "b"].map(|name| router.add(name, PrefixIndex::Reported, 100));
    let query = |session| Query {
        n_tokens: 1_000,
        blocks: &[],
        session,
        pinned: None,
        eligible: &ids,
        regions: None,
    };
    let mut ask = |session| {
        let choice = router.choose(&query(session), NOW).expect("a replica");
        assert_eq!(choice.n_cached_tokens, 0, "nothing is known to be cached");
        let mut ticket = router.start(&choice, &query(session));
        router.first_token(&mut ticket);
        (choice.replica, ticket)
    };
    let (first, ticket) = ask(Some(BlockKey(7)));
    let others = [ask(Some(BlockKey(7))), ask(Some(BlockKey(7)))];
    assert!(others.iter().all(|(replica, _)| *replica == first));
    let (other, _) = ask(None);
    assert_ne!(other, first, "one without a session goes where less is to be done");
    drop((ticket, others));
    let step_time = throng_core::scheduling::StepTime::default();
    let busy = LoadReport { n_queued_tokens: 50_000, step_time, ..LoadReport::default() };
    router.report(first, busy, NOW);
    let moved = router.choose(&query(Some(BlockKey(7))), NOW).expect("a replica");
    assert_eq!(moved.replica, other, "its prompt is computed sooner than the queue");
}

#[test]
fn a_cached_prefix_wins_until_the_queue_behind_it_is_longer() {
    let mut router = Router::new(Policy::LeastTtft, 0);
    let ids = ["a", "b"].map(|name| router.add(name, PrefixIndex::Inferred, 100));
    let blocks: Vec<_> = (0..10).map(BlockKey).collect();
    let n_tokens = 10 * BLOCK_TOKENS as u32;
    let query =
        Query { n_tokens, blocks: &blocks, session: None, pinned: None, eligible: &ids, regions: None };
    let mut first = router.choose(&query, NOW).map(|choice| router.start(&choice, &query)).unwrap();
    let owner = first.replica();
    router.first_token(&mut first);
    let again = router.choose(&query, NOW).unwrap();
    assert_eq!((again.replica, again.n_cached_tokens), (owner, n_tokens - 1));
    let step_time = throng_core::scheduling::StepTime::default();
    let busy = LoadReport { n_queued_tokens: 100_000, n_decoding: 1, step_time, ..LoadReport::default() };
    router.report(owner, busy, NOW);
    assert_ne!(router.choose(&query, NOW).unwrap().replica, owner);
    let later = NOW + REPORT_LIFETIME + Nanos(1);
    assert_eq!(router.choose(&query, later).unwrap().replica, owner, "old reports say nothing");
    router.end(first);
    assert_eq!(router.n_tokens(owner), 0);
}

#[test]
fn what_a_replica_says_of_its_cache_replaces_what_was_sent() {
    let mut router = Router::new(Policy::LeastTtft, 0);
    let id = router.add("a", PrefixIndex::Inferred, 100);
    let blocks: Vec<_> = (0..4).map(BlockKey).collect();
    let query =
        Query { n_tokens: 65, blocks: &blocks, session: None, pinned: None, eligible: &[id], regions: None };
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
    assert_eq!((n_cached(&mut router), router.n_cached_blocks(id)), (16, 2), "what is sent says nothing now");
    router.forget_cache(id);
    assert_eq!((n_cached(&mut router), router.n_cached_blocks(id)), (0, 0));
}

#[test]
fn another_replica_is_named_that_has_much_more_of_the_prompt() {
    let mut router = Router::new(Policy::LeastTtft, 0);
    let ids = ["a", "b"].map(|name| router.add(name, PrefixIndex::Inferred, 100));
    let blocks: Vec<_> = (0..20).map(BlockKey).collect();
    let query = Query {
        n_tokens: 321,
        blocks: &blocks,
        session: None,
        pinned: Some(ids[1]),
        eligible: &ids,
        regions: None,
    };
    for (replica, n_blocks, holder) in
        [(0, 7, None), (0, 8, Some(8)), (0, 20, Some(20)), (1, 12, Some(20)), (1, 13, None)]
    {
        let stored = blocks[..n_blocks].to_vec();
        router.follow_cache(ids[replica], &CacheNews { stored, ..CacheNews::default() });
        let choice = router.choose(&query, NOW).unwrap();
        assert_eq!(choice.holder, holder.map(|n_blocks| (ids[0], n_blocks)), "{replica} has {n_blocks}");
    }
    router.forget_cache(ids[1]);
    let elsewhere = Query { eligible: &ids[1..], ..query };
    assert_eq!(router.choose(&elsewhere, NOW).unwrap().holder, Some((ids[0], 20)), "it takes no requests");
    router.remove(ids[0]);
    assert_eq!(router.choose(&query, NOW).unwrap().holder, None);
}

#[test]
fn pins_and_turns() {
    let mut router = Router::new(Policy::RoundRobin, 0);
    let ids = ["a", "b", "c"].map(|name| router.add(name, PrefixIndex::Reported, 1));
    let query =
        Query { n_tokens: 1, blocks: &[], session: None, pinned: None, eligible: &ids, regions: None };
    let turns: Vec<_> = (0..4).map(|_| router.choose(&query, NOW).unwrap().replica).collect();
    assert_eq!(turns, [ids[0], ids[1], ids[2], ids[0]]);
    let pinned = Query { pinned: router.named("c"), ..query };
    assert_eq!(router.choose(&pinned, NOW).unwrap().replica, ids[2]);
    router.remove(ids[2]);
    assert_eq!((router.choose(&pinned, NOW), router.named("c")), (None, None));
}
