//! The cached blocks in groups: blocks of one chain that were last used together, the end of the chain first.
//! Chooses the group that gives way. Does not know contents.

use super::reuse::{ReuseClass, ReuseTimes};
use super::{EvictionPolicy, NONE, Slot};
use crate::scheduling::batch::BlockId;
use crate::time::{Nanos, Timestamp};

/// Time for which the blocks that a waiting request will read are spared.
const MOST_WAITING: Nanos = Nanos::from_ms(30_000);

/// Groups of cached blocks.
#[derive(Debug)]
pub(super) struct CachedBlocks {
    policy: EvictionPolicy,
    groups: Vec<Group>,
    free: Vec<u32>,
    /// Group to which the block before was added.
    open: u32,
    /// Group that gives way, as chosen at the time beside it.
    victim: Option<(u32, Timestamp)>,
    n_blocks: usize,
}

/// Blocks of one chain that were used together.
#[derive(Debug, Clone, Copy)]
struct Group {
    /// The block that gives way first; [`NONE`] in a free group.
    first: u32,
    last: u32,
    class: ReuseClass,
    last_use: Timestamp,
}

impl CachedBlocks {
    pub fn new(policy: EvictionPolicy) -> Self {
        Self { policy, groups: Vec::new(), free: Vec::new(), open: NONE, victim: None, n_blocks: 0 }
    }

    /// Number of cached blocks.
    pub fn len(&self) -> usize {
        self.n_blocks
    }

    /// Time of the last use of a cached block.
    pub fn last_use(&self, slot: &Slot) -> Timestamp {
        self.groups[slot.group as usize].last_use
    }

    /// Adds a block that was used until now. It joins the group of the block that was added before, if
    /// `follows` says that this one is the block before it in its chain and both are of one class.
    pub fn add(&mut self, slots: &mut [Slot], block: BlockId, follows: bool, now: Timestamp) {
        let class = slots[block.0 as usize].class;
        let is_open = |group: &&Group| group.first != NONE && group.class == class && group.last_use == now;
        let open = self.groups.get(self.open as usize).filter(|_| follows).filter(is_open);
        let (group, last) = match open {
            Some(group) => (self.open, group.last),
            None => (self.new_group(class, now), NONE),
        };
        self.open = group;
        let slot = &mut slots[block.0 as usize];
        (slot.group, slot.previous, slot.next) = (group, last, NONE);
        match last {
            NONE => self.groups[group as usize].first = block.0,
            last => slots[last as usize].next = block.0,
        }
        self.groups[group as usize].last = block.0;
        self.n_blocks += 1;
    }

    fn new_group(&mut self, class: ReuseClass, last_use: Timestamp) -> u32 {
        let group = Group { first: NONE, last: NONE, class, last_use };
        match self.free.pop() {
            Some(free) => {
                self.groups[free as usize] = group;
                free
            }
            None => {
                self.groups.push(group);
                self.groups.len() as u32 - 1
            }
        }
    }

    /// Removes a block from its group.
    pub fn remove(&mut self, slots: &mut [Slot], block: BlockId) {
        let Slot { group, previous, next, .. } = slots[block.0 as usize];
        match previous {
            NONE => self.groups[group as usize].first = next,
            previous => slots[previous as usize].next = next,
        }
        match next {
            NONE => self.groups[group as usize].last = previous,
            next => slots[next as usize].previous = previous,
        }
        if self.groups[group as usize].first == NONE {
            self.free.push(group);
        }
        self.n_blocks -= 1;
    }

    /// The block that gives way: of the group that is worth least, the one at its end.
    pub fn victim(&mut self, slots: &[Slot], times: &ReuseTimes, now: Timestamp) -> Option<BlockId> {
        if let Some((group, chosen)) = self.victim
            && chosen == now
            && let Some(block) = self.end_of(slots, group)
            && !self.is_awaited(&slots[block as usize], now)
        {
            return Some(BlockId(block));
        }
        let group = self.choose(slots, times, now)?;
        self.victim = Some((group, now));
        Some(BlockId(self.groups[group as usize].first))
    }

    /// The block at the end of a group, if no other block follows it in its chain.
    fn end_of(&self, slots: &[Slot], group: u32) -> Option<u32> {
        let first = self.groups[group as usize].first;
        (first != NONE && slots[first as usize].n_children == 0).then_some(first)
    }

    /// Whether a request that waits will read a block.
    fn is_awaited(&self, slot: &Slot, now: Timestamp) -> bool {
        self.policy == EvictionPolicy::Worth
            && slot.awaited.is_some_and(|since| now.since(since) < MOST_WAITING)
    }

    fn choose(&self, slots: &[Slot], times: &ReuseTimes, now: Timestamp) -> Option<u32> {
        let (mut best, mut best_rank) = (None, (true, f32::INFINITY, Timestamp::default()));
        let mut oldest: Option<(Timestamp, u32)> = None;
        for (i, group) in self.groups.iter().enumerate().filter(|(_, group)| group.first != NONE) {
            oldest = oldest.min(Some((group.last_use, i as u32))).or(Some((group.last_use, i as u32)));
            let Some(end) = self.end_of(slots, i as u32) else { continue };
            let end = &slots[end as usize];
            let rank = match self.policy {
                EvictionPolicy::Lru => (false, 0.0, group.last_use),
                EvictionPolicy::Worth if self.is_awaited(end, now) => {
                    // The one that waits shortest is the last to be read.
                    let waiting = now.since(end.awaited.unwrap_or(now));
                    (true, waiting.0 as f32, group.last_use)
                }
                EvictionPolicy::Worth => {
                    (false, times.worth(group.class, now.since(group.last_use)), group.last_use)
                }
            };
            if best.is_none() || rank.partial_cmp(&best_rank) == Some(std::cmp::Ordering::Less) {
                (best, best_rank) = (Some(i as u32), rank);
            }
        }
        // A chain whose end is used elsewhere under another block has no end here.
        best.or(oldest.map(|(_, group)| group))
    }

    /// All cached blocks.
    pub fn blocks(&self, slots: &[Slot]) -> Vec<BlockId> {
        let mut blocks = Vec::with_capacity(self.n_blocks);
        for group in &self.groups {
            let mut block = group.first;
            while block != NONE && blocks.len() <= slots.len() {
                blocks.push(BlockId(block));
                block = slots[block as usize].next;
            }
        }
        blocks
    }
}
