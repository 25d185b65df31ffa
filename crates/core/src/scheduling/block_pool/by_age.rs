//! The groups of cached blocks by class and time of their last use, to find the least worthy one without a
//! scan of all groups: those of one class and one bin of ages are worth the same, so only the oldest of them
//! is a candidate. Does not know blocks.

use std::collections::VecDeque;

use super::reuse::{N_CLASSES, ReuseClass, ReuseTimes, bin};
use crate::time::Timestamp;

/// Number of entries of removed groups that a class may keep beyond those of present ones.
const MOST_STALE: usize = 64;

/// A group, as long as it has this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GroupEntry {
    pub last_use: Timestamp,
    pub group: u32,
    pub number: u64,
}

#[derive(Debug, Default)]
struct OfClass {
    /// Present and removed groups in order of their last use.
    entries: VecDeque<GroupEntry>,
    n_present: usize,
}

/// Groups of all classes.
#[derive(Debug, Default)]
pub(super) struct GroupsByAge {
    classes: [OfClass; N_CLASSES],
}

impl GroupsByAge {
    /// Adds a group, which was used no earlier than all others.
    pub fn add(&mut self, class: ReuseClass, entry: GroupEntry) {
        let of_class = &mut self.classes[class.index()];
        of_class.n_present += 1;
        of_class.entries.push_back(entry);
    }

    /// Notes that a group is no more; `is_present` tells whether that of an entry is.
    pub fn note_removed(&mut self, class: ReuseClass, is_present: impl Fn(&GroupEntry) -> bool) {
        let OfClass { entries, n_present } = &mut self.classes[class.index()];
        *n_present -= 1;
        while entries.front().is_some_and(|entry| !is_present(entry)) {
            entries.pop_front();
        }
        if entries.len() > 2 * *n_present + MOST_STALE {
            entries.retain(is_present);
        }
    }

    /// The least worthy group among those that may go, the least recently used one of several, then the one
    /// of the smallest index. Without `times`, all are worth the same.
    pub fn least_worthy(
        &self,
        times: Option<&ReuseTimes>,
        now: Timestamp,
        may_go: impl Fn(&GroupEntry) -> bool,
    ) -> Option<u32> {
        let mut best: Option<(f32, Timestamp, u32)> = None;
        for (class, OfClass { entries, .. }) in self.classes.iter().enumerate() {
            let mut start = 0;
            while let Some(first) = entries.get(start) {
                let age = bin(now.since(first.last_use));
                let least = times.map_or(0.0, |times| times.least_worth(class, age));
                if best.is_some_and(|(worth, last_use, _)| (worth, last_use) < (least, first.last_use)) {
                    break;
                }
                let worth = times.map_or(0.0, |times| times.worth_of_bin(class, age));
                let is_of_bin = |entry: &&GroupEntry| bin(now.since(entry.last_use)) == age;
                let mut found: Option<Timestamp> = None;
                for entry in entries.range(start..).take_while(is_of_bin) {
                    if found.is_some_and(|last_use| last_use < entry.last_use) {
                        break;
                    }
                    if may_go(entry) {
                        found = Some(entry.last_use);
                        let candidate = (worth, entry.last_use, entry.group);
                        best = best.filter(|best| *best <= candidate).or(Some(candidate));
                    }
                }
                start = entries.partition_point(|entry| bin(now.since(entry.last_use)) >= age);
            }
        }
        best.map(|(_, _, group)| group)
    }
}
