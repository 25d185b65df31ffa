//! The prefixes in one replica's cache, by the names of their last blocks. Does not know tokens.

use std::collections::HashMap;

use crate::scheduling::block_hash::BlockKey;
use crate::scheduling::block_pool::CacheNews;
use crate::scheduling::name_hasher::NameState;

/// Source of the index of prefixes that a replica has cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefixIndex {
    /// The replica reports stored and removed blocks.
    Reported,
    /// The replica does not report its cache: the prompts sent to it are assumed to be cached, until newer
    /// ones displace them.
    Inferred,
}

/// Index that ends the list.
const NONE: u32 = u32::MAX;

/// A bounded set of block names, the least recently used ones dropped first.
///
/// The name of a block covers all blocks before it, so a set of names is a prefix tree whose edges are whole
/// blocks. A lookup ends at the first name that is missing.
#[derive(Debug)]
pub struct CachedPrefixes {
    max_blocks: usize,
    places: HashMap<BlockKey, u32, NameState>,
    /// Names as a list in order of use, threaded through the entries.
    entries: Vec<Entry>,
    free: Vec<u32>,
    oldest: u32,
    newest: u32,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    block: BlockKey,
    older: u32,
    newer: u32,
}

impl CachedPrefixes {
    /// Creates an empty set for at most `max_blocks` names.
    pub fn new(max_blocks: usize) -> Self {
        let (places, entries, free) = (HashMap::default(), Vec::new(), Vec::new());
        Self { max_blocks, places, entries, free, oldest: NONE, newest: NONE }
    }

    /// Number of names.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are no names.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Notes that these blocks of one prompt, in its order, are cached. Later blocks count as used earlier,
    /// so that the end of a prefix is dropped first and every name that is kept can be reached by a lookup.
    pub fn publish(&mut self, blocks: &[BlockKey]) {
        for block in blocks[..blocks.len().min(self.max_blocks)].iter().rev() {
            self.use_now(*block);
        }
        while self.places.len() > self.max_blocks && self.oldest != NONE {
            let oldest = self.entries[self.oldest as usize].block;
            self.withdraw(&oldest);
        }
    }

    /// Makes a name the newest one.
    fn use_now(&mut self, block: BlockKey) {
        let place = match self.places.get(&block) {
            Some(&place) => {
                self.unlink(place);
                place
            }
            None => {
                let place = self.free.pop().unwrap_or(self.entries.len() as u32);
                self.places.insert(block, place);
                place
            }
        };
        let entry = Entry { block, older: self.newest, newer: NONE };
        match self.entries.get_mut(place as usize) {
            Some(known) => *known = entry,
            None => self.entries.push(entry),
        }
        match self.newest {
            NONE => self.oldest = place,
            newest => self.entries[newest as usize].newer = place,
        }
        self.newest = place;
    }

    fn unlink(&mut self, place: u32) {
        let Entry { older, newer, .. } = self.entries[place as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.entries[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.entries[newer as usize].older = older,
        }
    }

    /// Notes that this block is no longer cached. Unknown names are ignored: they may have been dropped here
    /// before.
    pub fn withdraw(&mut self, block: &BlockKey) {
        if let Some(place) = self.places.remove(block) {
            self.unlink(place);
            self.free.push(place);
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
        self.places.clear();
        self.entries.clear();
        self.free.clear();
        (self.oldest, self.newest) = (NONE, NONE);
    }

    /// Number of blocks at the beginning of a prompt that are cached.
    pub fn n_cached(&self, blocks: &[BlockKey]) -> usize {
        blocks.iter().take_while(|block| self.places.contains_key(block)).count()
    }

    /// Number of those blocks up to the last one at whose end there is a recurrent state.
    pub fn n_with_state(&self, blocks: &[BlockKey]) -> usize {
        let has_state = |n: &usize| self.places.contains_key(&blocks[n - 1].of_state());
        (1..=self.n_cached(blocks)).rev().find(has_state).unwrap_or(0)
    }
}
