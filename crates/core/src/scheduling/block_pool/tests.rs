//! Tests of the pool.

use super::*;
use crate::request::TenantId;
use crate::scheduling::batch::BLOCK_TOKENS;

fn root() -> BlockHash {
    BlockHash::root(&TenantId::anonymous(), None, None)
}

fn content(token: u32) -> BlockContent {
    let tokens = [token; BLOCK_TOKENS];
    BlockContent { hash: root().child(&tokens), parent: root(), tokens, n_before: 0 }
}

fn publish(pool: &mut BlockPool, token: u32) -> BlockId {
    let block = pool.allocate().expect("a block is left");
    pool.publish(block, &content(token));
    block
}

fn find(pool: &BlockPool, token: u32) -> Option<BlockId> {
    pool.find(&content(token))
}

#[test]
fn the_least_recently_used_content_goes_first() {
    let mut pool = BlockPool::new(3);
    let blocks = [publish(&mut pool, 1), publish(&mut pool, 2), publish(&mut pool, 3)];
    for (second, block) in blocks.into_iter().enumerate() {
        pool.set_now(Timestamp::from_ns(second as u64 * 1_000_000_000));
        pool.release(block);
    }
    let again = find(&pool, 1).expect("it is cached");
    pool.set_now(Timestamp::from_ns(5_000_000_000));
    pool.retain(again);
    pool.release(again);
    pool.set_now(Timestamp::from_ns(6_000_000_000));
    pool.check_invariants().expect("the invariants hold");
    assert_eq!(pool.allocate(), Some(blocks[1]));
    assert_eq!((find(&pool, 1), find(&pool, 2), find(&pool, 3)), (Some(blocks[0]), None, Some(blocks[2])));
    pool.check_invariants().expect("the invariants hold");
}

#[test]
fn a_hit_is_verified_against_its_tokens() {
    let mut pool = BlockPool::new(2);
    let block = publish(&mut pool, 1);
    let mine = content(1);
    assert_eq!(pool.find(&mine), Some(block));
    assert_eq!(pool.find(&BlockContent { tokens: [2; BLOCK_TOKENS], ..mine }), None);
    assert_eq!(pool.find(&BlockContent { parent: mine.hash, ..mine }), None);
}

#[test]
fn the_second_block_with_one_content_stays_nameless() {
    let mut pool = BlockPool::new(2);
    let (first, second) = (publish(&mut pool, 1), publish(&mut pool, 1));
    pool.release(second);
    assert_eq!((pool.n_free(), pool.n_cached()), (1, 0));
    pool.release(first);
    assert_eq!((pool.n_free(), pool.n_cached(), find(&pool, 1)), (1, 1, Some(first)));
    pool.check_invariants().expect("the invariants hold");
}

#[test]
fn readers_of_its_events_know_its_names() {
    let mut pool = BlockPool::new(3);
    let key = |token| root().child(&[token; BLOCK_TOKENS]).key();
    let first = publish(&mut pool, 1);
    assert!(pool.take_cache_events().is_empty(), "nobody asked");
    pool.record_cache_events();
    pool.release(first);
    let others = [publish(&mut pool, 2), publish(&mut pool, 3)];
    let evicting = publish(&mut pool, 4);
    let expected = [CacheEvent::Cleared, CacheEvent::Stored(key(1)), CacheEvent::Stored(key(2))];
    let then = [CacheEvent::Stored(key(3)), CacheEvent::Removed(key(1)), CacheEvent::Stored(key(4))];
    assert_eq!(pool.take_cache_events(), [expected, then].concat());
    for token in 5..100 {
        pool.release(if token == 5 { evicting } else { find(&pool, token - 1).expect("used") });
        publish(&mut pool, token);
    }
    let mut log = CacheLog::new(100);
    let events = pool.take_cache_events();
    assert!(events.len() <= 7, "{events:?}");
    log.extend(events);
    let mut stored = [2, 3, 99].map(key);
    stored.sort();
    assert_eq!(log.read(&mut CacheCursor::default()).stored, stored);
    others.into_iter().for_each(|block| pool.release(block));
}

#[test]
fn what_gives_way_is_told_to_whoever_asks() {
    let mut pool = BlockPool::new(2);
    let blocks = [publish(&mut pool, 1), publish(&mut pool, 2)];
    blocks.into_iter().for_each(|block| pool.release(block));
    pool.allocate().expect("a cached block gives way");
    assert_eq!(pool.take_dropped(), [], "nobody asked");
    pool.record_dropped();
    let again = pool.allocate().expect("a cached block gives way");
    let dropped = DroppedBlock { block: blocks[1], content: content(2) };
    assert_eq!((again, pool.take_dropped()), (blocks[1], vec![dropped]));
    assert_eq!(pool.take_dropped(), [], "told once");
    for token in 3..100 {
        pool.release(again);
        publish(&mut pool, token);
    }
    assert!(pool.take_dropped().len() <= pool.n_total(), "a list that nobody takes is bounded");
}

#[test]
fn forgetting_frees_what_nobody_holds() {
    let mut pool = BlockPool::new(2);
    let (held, cached) = (publish(&mut pool, 1), publish(&mut pool, 2));
    pool.release(cached);
    pool.forget_published();
    pool.check_invariants().expect("the invariants hold");
    assert_eq!((find(&pool, 1), find(&pool, 2), pool.n_free(), pool.n_used()), (None, None, 1, 1));
    pool.release(held);
    assert_eq!(pool.n_free(), 2);
}
