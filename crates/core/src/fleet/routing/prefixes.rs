//! The prefixes in one replica's cache, by the names of their last blocks. Does not know tokens.

use std::collections::{BTreeMap, HashMap};

use crate::scheduling::block_hash::BlockKey;
use crate::scheduling::block_pool::CacheNews;

/// Source of the index of prefixes that a replica has cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefixIndex {
    /// The replica reports stored and removed blocks.
    Reported,
    /// The replica reports nothing: the prompts sent to it are assumed to be cached, until newer ones
    /// displace them.
    Inferred,
}

/// A bounded set of block names, the least recently used ones dropped first.
///
/// The name of a block covers all blocks before it, so a set of names is a prefix tree whose edges are whole
/// blocks. A lookup ends at the first name that is missing.
#[derive(Debug)]
pub struct CachedPrefixes {
    max_blocks: usize,
    uses: HashMap<BlockKey, u64>,
    by_use: BTreeMap<u64, BlockKey>,
    n_uses: u64,
}

impl CachedPrefixes {
    /// Creates an empty set for at most `max_blocks` names.
    pub fn new(max_blocks: usize) -> Self {
        Self { max_blocks, uses: HashMap::new(), by_use: BTreeMap::new(), n_uses: 0 }
    }

    /// Number of names.
    pub fn len(&self) -> usize {
        self.uses.len()
    }

    /// Whether there are no names.
    pub fn is_empty(&self) -> bool {
        self.uses.is_empty()
    }

    /// Notes that these blocks of one prompt, in its order, are cached. Later blocks count as used earlier,
    /// so that the end of a prefix is dropped first and every name that is kept can be reached by a lookup.
    pub fn publish(&mut self, blocks: &[BlockKey]) {
        for block in blocks[..blocks.len().min(self.max_blocks)].iter().rev() {
            if let Some(use_before) = self.uses.insert(*block, self.n_uses) {
                self.by_use.remove(&use_before);
            }
            self.by_use.insert(self.n_uses, *block);
            self.n_uses += 1;
        }
        while self.uses.len() > self.max_blocks {
            let Some((_, oldest)) = self.by_use.pop_first() else { return };
            self.uses.remove(&oldest);
        }
    }

    /// Notes that this block is no longer cached. Unknown names are ignored: they may have been dropped here
    /// before.
    pub fn withdraw(&mut self, block: &BlockKey) {
        if let Some(last_use) = self.uses.remove(block) {
            self.by_use.remove(&last_use);
        }
    }

    /// Applies a replica's report about its cache.
    pub fn follow(&mut self, news: &CacheNews) {
        if news.is_snapshot {
            self.clear();
        }
        news.removed.iter().for_each(|block| self.withdraw(block));
        self.publish(&news.stored);
    }

    /// Removes all names, as when the replica starts again.
    pub fn clear(&mut self) {
        self.uses.clear();
        self.by_use.clear();
    }

    /// Number of blocks at the beginning of a prompt that are cached.
    pub fn n_cached(&self, blocks: &[BlockKey]) -> usize {
        blocks.iter().take_while(|block| self.uses.contains_key(block)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
