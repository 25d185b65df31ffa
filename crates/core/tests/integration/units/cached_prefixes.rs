//! Prefixes that a replica has cached.

use throng_core::fleet::routing::CachedPrefixes;
use throng_core::scheduling::block_hash::BlockKey;

fn prompt(first: u64, n_blocks: u64) -> Vec<BlockKey> {
    (first..first + n_blocks).map(BlockKey).collect()
}

#[test]
fn the_end_of_the_oldest_prefix_is_dropped_first() {
    let (old, new) = (prompt(0, 4), prompt(100, 3));
    let mut cached = CachedPrefixes::new(5);
    cached.publish(&old);
    cached.publish(&new);
    assert_eq!((cached.len(), cached.n_cached(&old), cached.n_cached(&new)), (5, 2, 3));
    cached.publish(&prompt(200, 9));
    assert_eq!((cached.len(), cached.n_cached(&prompt(200, 9))), (5, 5));
}

#[test]
fn nothing_is_cached_behind_a_withdrawn_block() {
    let names = prompt(0, 4);
    let mut cached = CachedPrefixes::new(10);
    cached.publish(&names);
    cached.withdraw(&names[1]);
    cached.withdraw(&names[1]);
    assert_eq!(cached.n_cached(&names), 1);
    cached.publish(&names[1..2]);
    assert_eq!(cached.n_cached(&names), 4);
    cached.clear();
    assert!(cached.is_empty() && cached.n_cached(&names) == 0);
}
