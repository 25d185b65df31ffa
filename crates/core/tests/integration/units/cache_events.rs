//! Changes of a prefix cache for its readers.

use std::collections::BTreeSet;

use throng_core::scheduling::block_hash::BlockKey;
use throng_core::scheduling::block_pool::{CacheCursor, CacheEvent, CacheLog};

/// Readers that read now and then, and one that is always behind, know all cached names after each
/// reading.
#[test]
fn readers_know_what_is_cached() {
    let mut random = 7_u64;
    let mut below = |bound: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % bound
    };
    let mut log = CacheLog::new(20);
    let mut truth = BTreeSet::new();
    let mut readers =
        [(CacheCursor::default(), BTreeSet::new(), 3), (CacheCursor::default(), BTreeSet::new(), 60)];
    let mut n_snapshots = [0, 0];
    for step in 0..5_000 {
        let name = BlockKey(below(15));
        let event = match below(200) {
            0 => CacheEvent::Cleared,
            1..100 => CacheEvent::Stored(name),
            _ => CacheEvent::Removed(name),
        };
        match event {
            CacheEvent::Cleared => truth.clear(),
            CacheEvent::Stored(name) => {
                truth.insert(name);
            }
            CacheEvent::Removed(name) => {
                truth.remove(&name);
            }
        }
        log.extend([event]);
        for (idx, (cursor, known, interval)) in readers.iter_mut().enumerate() {
            if step % *interval != 0 {
                continue;
            }
            let news = log.read(cursor);
            if news.is_snapshot {
                known.clear();
                n_snapshots[idx] += 1;
            }
            known.retain(|name| !news.removed.contains(name));
            known.extend(news.stored);
            assert_eq!(*known, truth, "reader {idx} at step {step}");
            assert!(log.read(cursor).is_empty());
        }
    }
    assert!(n_snapshots[0] < 60, "the one that keeps up gets changes: {n_snapshots:?}");
    assert!(n_snapshots[1] > 80, "the one that is behind gets everything: {n_snapshots:?}");
}
