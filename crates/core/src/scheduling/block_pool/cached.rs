//! The cached blocks in groups: blocks of one chain that were last used together, the end of the chain first.
//! Chooses the group to evict. Does not know contents.

use super::by_age::{GroupEntry, GroupsByAge};
use super::marks::{GroupMark, Marks};
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
    by_age: GroupsByAge,
    /// Number of groups so far.
    n_made: u64,
    free: Vec<u32>,
    /// Group to which the block before was added.
    open: u32,
    /// Group that gives way.
    victim: Option<Victim>,
    n_blocks: usize,
    marks: Marks,
    /// No mark of a group ends before this time.
    next_expiry: Timestamp,
}

/// Group that gives way while the time and its rank stay as they were when it was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Victim {
    group: u32,
    chosen: Timestamp,
    rank: u8,
    /// Whether more blocks were marked than may be.
    is_over: bool,
}

/// Blocks of one chain that were used together.
#[derive(Debug, Clone, Copy)]
struct Group {
    /// The block that is evicted first; [`NONE`] in a free group.
    first: u32,
    last: u32,
    class: ReuseClass,
    last_use: Timestamp,
    mark: GroupMark,
    /// Number of groups that were made before.
    number: u64,
}

/// End of time, when there is no mark to end.
const NEVER: Timestamp = Timestamp::from_ns(u64::MAX);

impl CachedBlocks {
    /// Creates an empty set in which at most `max_marked` blocks count as marked.
    pub fn new(policy: EvictionPolicy, max_marked: usize) -> Self {
        Self {
            policy,
            groups: Vec::new(),
            by_age: GroupsByAge::default(),
            n_made: 0,
            free: Vec::new(),
            open: NONE,
            victim: None,
            n_blocks: 0,
            marks: Marks::new(max_marked),
            next_expiry: NEVER,
        }
    }

    /// The marked blocks of each tenant.
    pub fn marks(&self) -> &Marks {
        &self.marks
    }

    /// The marked blocks of each tenant.
    pub fn marks_mut(&mut self) -> &mut Marks {
        &mut self.marks
    }

    /// Mark of a cached block.
    pub fn mark(&self, slot: &Slot) -> GroupMark {
        self.groups[slot.group as usize].mark
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
    /// `follows` says that this one is the block before it in its chain and both are of one class and mark.
    pub fn add(&mut self, slots: &mut [Slot], block: BlockId, follows: bool, now: Timestamp) {
        let Slot { class, mark, .. } = slots[block.0 as usize];
        let mark = match mark {
            None => GroupMark::None,
            Some(mark) => {
                let until = now + mark.keep;
                self.next_expiry = self.next_expiry.min(until);
                self.marks.note_cached(mark.owner);
                GroupMark::Until(mark.owner, until)
            }
        };
        let is_open = |group: &&Group| {
            group.first != NONE && group.class == class && group.last_use == now && group.mark == mark
        };
        let open = self.groups.get(self.open as usize).filter(|_| follows).filter(is_open);
        let (group, last) = match open {
            Some(group) => (self.open, group.last),
            None => {
                let number = self.n_made;
                self.n_made += 1;
                (self.new_group(Group { first: NONE, last: NONE, class, last_use: now, mark, number }), NONE)
            }
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

    fn new_group(&mut self, group: Group) -> u32 {
        let place = match self.free.pop() {
            Some(free) => {
                self.groups[free as usize] = group;
                free
            }
            None => {
                self.groups.push(group);
                self.groups.len() as u32 - 1
            }
        };
        let Group { class, last_use, number, .. } = group;
        self.by_age.add(class, GroupEntry { last_use, group: place, number });
        place
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
        if let GroupMark::Until(owner, _) = self.groups[group as usize].mark {
            self.marks.note_not_cached(owner);
        }
        if self.groups[group as usize].first == NONE {
            self.free.push(group);
            let groups = &self.groups;
            let class = groups[group as usize].class;
            self.by_age.note_removed(class, |entry| is_present(groups, entry));
        }
        self.n_blocks -= 1;
    }

    /// Ends the marks whose time is over.
    pub fn expire(&mut self, slots: &mut [Slot], now: Timestamp) {
        if now < self.next_expiry {
            return;
        }
        self.next_expiry = NEVER;
        for i in 0..self.groups.len() {
            let Group { first, mark: GroupMark::Until(owner, until), .. } = self.groups[i] else { continue };
            if first == NONE {
                continue;
            }
            if until > now {
                self.next_expiry = self.next_expiry.min(until);
                continue;
            }
            self.groups[i].mark = GroupMark::Expired;
            let mut block = first;
            while block != NONE {
                let slot = &mut slots[block as usize];
                slot.mark = None;
                self.marks.note_not_cached(owner);
                self.marks.note_unmarked(owner);
                block = slot.next;
            }
        }
    }

    /// The block that gives way: of the group that is worth least, the one at its end.
    pub fn victim(&mut self, slots: &[Slot], times: &ReuseTimes, now: Timestamp) -> Option<BlockId> {
        if let Some(victim) = self.victim
            && let Some(block) = self.end_of(slots, victim.group)
            && victim == self.as_victim(victim.group, now)
            // Nothing was released since that has to go before it.
            && victim.rank == 0
            && !self.is_awaited(&slots[block as usize], now)
        {
            return Some(BlockId(block));
        }
        let group = self.choose(slots, times, now)?;
        self.victim = Some(self.as_victim(group, now));
        Some(BlockId(self.groups[group as usize].first))
    }

    fn as_victim(&self, group: u32, now: Timestamp) -> Victim {
        let is_over = self.marks.over_share().is_some();
        Victim { group, chosen: now, rank: self.rank(&self.groups[group as usize], now), is_over }
    }

    fn rank(&self, group: &Group, now: Timestamp) -> u8 {
        self.marks.rank(group.mark, group.last_use, now)
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
        if self.marks.n_cached() > 0 {
            return self.choose_among_all(slots, times, now);
        }
        // All groups have one rank.
        let may_go = |entry: &GroupEntry| {
            is_present(&self.groups, entry)
                && self
                    .end_of(slots, entry.group)
                    .is_some_and(|end| !self.is_awaited(&slots[end as usize], now))
        };
        let times_of_policy = (self.policy == EvictionPolicy::Worth).then_some(times);
        let chosen = self.by_age.least_worthy(times_of_policy, now, may_go);
        debug_assert!(
            chosen.is_none() || chosen == self.choose_among_all(slots, times, now),
            "another victim"
        );
        chosen.or_else(|| self.choose_among_all(slots, times, now))
    }

    fn choose_among_all(&self, slots: &[Slot], times: &ReuseTimes, now: Timestamp) -> Option<u32> {
        let (mut best, mut best_rank) = (None, (true, u8::MAX, f32::INFINITY, Timestamp::default()));
        let mut oldest: Option<(Timestamp, u32)> = None;
        for (i, group) in self.groups.iter().enumerate().filter(|(_, group)| group.first != NONE) {
            oldest = oldest.min(Some((group.last_use, i as u32))).or(Some((group.last_use, i as u32)));
            let Some(end) = self.end_of(slots, i as u32) else { continue };
            let end = &slots[end as usize];
            let rank = match self.policy {
                EvictionPolicy::Lru => (false, self.rank(group, now), 0.0, group.last_use),
                EvictionPolicy::Worth if self.is_awaited(end, now) => {
                    // The one that waits shortest is the last to be read.
                    let waiting = now.since(end.awaited.unwrap_or(now));
                    (true, 0, waiting.0 as f32, group.last_use)
                }
                EvictionPolicy::Worth => {
                    let worth = times.worth(group.class, now.since(group.last_use));
                    (false, self.rank(group, now), worth, group.last_use)
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

/// Whether the group of an entry still exists.
fn is_present(groups: &[Group], entry: &GroupEntry) -> bool {
    let group = &groups[entry.group as usize];
    group.first != NONE && group.number == entry.number
}
