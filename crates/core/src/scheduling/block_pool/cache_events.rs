//! Changes of the prefix cache, for choosing replicas by their caches. Recorded only after the first request
//! for them. Does not know the readers.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::scheduling::block_hash::BlockKey;
use crate::scheduling::name_hasher::NameState;

/// One change of a prefix cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheEvent {
    /// A block can be found in the cache from now on.
    Stored(BlockKey),
    /// A block cannot be found in the cache any more.
    Removed(BlockKey),
    /// The cache is empty; only blocks stored after this can be found.
    Cleared,
}

/// Changes since the last call, at most twice the number of blocks plus one; beyond that, a list of all
/// cached blocks replaces them.
#[derive(Debug, Default)]
pub(super) struct CacheEvents {
    /// Recorded changes; `None` if they are not recorded.
    events: Option<Vec<CacheEvent>>,
}

impl CacheEvents {
    /// Starts recording; `names` are the blocks that can be found now.
    pub fn begin(&mut self, names: impl Iterator<Item = BlockKey>) {
        self.events = Some(all(names));
    }

    pub fn is_recording(&self) -> bool {
        self.events.is_some()
    }

    /// Records a change. Returns whether too many were recorded since the last call; then [`Self::begin`]
    /// must be called again.
    #[must_use]
    pub fn note(&mut self, event: CacheEvent, n_blocks: usize) -> bool {
        let Some(events) = &mut self.events else { return false };
        events.push(event);
        events.len() > 2 * n_blocks + 1
    }

    /// Takes the recorded changes.
    pub fn take(&mut self) -> Vec<CacheEvent> {
        self.events.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

fn all(names: impl Iterator<Item = BlockKey>) -> Vec<CacheEvent> {
    std::iter::once(CacheEvent::Cleared).chain(names.map(CacheEvent::Stored)).collect()
}

/// Changes that a reader of a [`CacheLog`] has not read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheNews {
    /// Whether `stored` is the whole content of the cache and replaces earlier knowledge.
    pub is_snapshot: bool,
    /// Blocks that can be found from now on.
    pub stored: Vec<BlockKey>,
    /// Blocks that can no longer be found.
    pub removed: Vec<BlockKey>,
}

impl CacheNews {
    /// The whole content of a cache.
    pub fn snapshot(mut names: Vec<BlockKey>) -> Self {
        names.sort_unstable();
        Self { is_snapshot: true, stored: names, removed: Vec::new() }
    }

    /// The net changes of these events; `None` if the cache was cleared in between.
    pub fn of_events(events: &[CacheEvent]) -> Option<Self> {
        (!events.contains(&CacheEvent::Cleared)).then(|| changes(events.iter()))
    }

    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        !self.is_snapshot && self.stored.is_empty() && self.removed.is_empty()
    }

    /// Keeps the first `n` blocks of each list.
    #[must_use]
    pub fn limited_to(mut self, n: usize) -> Self {
        self.stored.truncate(n);
        self.removed.truncate(n);
        self
    }
}

/// Position of a reader in a [`CacheLog`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheCursor(Option<u64>);

/// A set of names with an order that does not depend on hashes.
#[derive(Debug, Default)]
struct NameSet {
    names: Vec<BlockKey>,
    /// Index of each name in `names`.
    places: HashMap<BlockKey, usize, NameState>,
}

impl NameSet {
    fn insert(&mut self, name: BlockKey) {
        if let Entry::Vacant(entry) = self.places.entry(name) {
            entry.insert(self.names.len());
            self.names.push(name);
        }
    }

    fn remove(&mut self, name: BlockKey) {
        let Some(place) = self.places.remove(&name) else { return };
        self.names.swap_remove(place);
        if let Some(moved) = self.names.get(place) {
            self.places.insert(*moved, place);
        }
    }

    fn clear(&mut self) {
        self.names.clear();
        self.places.clear();
    }
}

/// Latest changes of a prefix cache for several readers, and all cached names for readers that missed some.
#[derive(Debug)]
pub struct CacheLog {
    max_events: usize,
    /// Number of the oldest event kept.
    first: u64,
    events: VecDeque<CacheEvent>,
    names: NameSet,
}

impl CacheLog {
    /// Creates a log of at most `max_events` events. The number of names is at most the number of the pool's
    /// blocks.
    pub fn new(max_events: usize) -> Self {
        Self { max_events, first: 0, events: VecDeque::new(), names: NameSet::default() }
    }

    /// Adds changes in their order.
    pub fn extend(&mut self, events: impl IntoIterator<Item = CacheEvent>) {
        for event in events {
            match event {
                CacheEvent::Stored(name) => self.names.insert(name),
                CacheEvent::Removed(name) => self.names.remove(name),
                CacheEvent::Cleared => self.names.clear(),
            }
            self.events.push_back(event);
            if self.events.len() > self.max_events {
                self.events.pop_front();
                self.first += 1;
            }
        }
    }

    /// Returns the changes that a reader has not read: single changes, or all names if the reader is new or
    /// too far behind.
    pub fn read(&self, cursor: &mut CacheCursor) -> CacheNews {
        let end = self.first + self.events.len() as u64;
        let before = cursor.0.replace(end);
        let skipped = before.and_then(|at| at.checked_sub(self.first));
        let unseen = skipped.map(|n| self.events.range(n as usize..));
        match unseen {
            Some(events) if !events.clone().any(|event| *event == CacheEvent::Cleared) => changes(events),
            _ => CacheNews::snapshot(self.names.names.clone()),
        }
    }
}

/// The net changes in order of name: only the last change of each name counts.
fn changes<'a>(events: impl Iterator<Item = &'a CacheEvent>) -> CacheNews {
    let by_name = events.filter_map(|event| match *event {
        CacheEvent::Stored(name) => Some((name, true)),
        CacheEvent::Removed(name) => Some((name, false)),
        CacheEvent::Cleared => None,
    });
    let mut by_name: Vec<(BlockKey, bool)> = by_name.collect();
    // Stable, so that the changes of a name stay in their order.
    by_name.sort_by_key(|(name, _)| *name);
    let mut news = CacheNews::default();
    for of_name in by_name.chunk_by(|(a, _), (b, _)| a == b) {
        match of_name[of_name.len() - 1] {
            (name, true) => news.stored.push(name),
            (name, false) => news.removed.push(name),
        }
    }
    news
}
