//! Places of counters and buffers in a shared memory. Does not know how they are used.

use std::ops::Range;

use throng_os::shared_memory::SharedSizes;

use super::MAX_RANKS;

/// Number of words of a slot, which a rank publishes in one round of a collective.
pub(super) const SLOT_WORDS: usize = 32 * 1024;
/// Number of words that a mailbox buffers.
pub(super) const MAILBOX_WORDS: usize = 512 * 1024;
/// Distance of two flags: no two of them are in one cache line, nor in a pair of lines that is fetched
/// together.
const FLAG_STRIDE: usize = 32;

/// Layout of the counters and buffers of a host's ranks and of its groups.
#[derive(Debug)]
pub(super) struct Layout {
    n_ranks: usize,
    groups: Vec<Group>,
}

#[derive(Debug)]
struct Group {
    members: Vec<usize>,
    /// Index of the first member among those of all groups.
    first: usize,
}

impl Layout {
    pub(super) fn new(n_ranks: usize, groups: &[Vec<usize>]) -> Self {
        assert!((1..=MAX_RANKS).contains(&n_ranks), "{n_ranks} ranks");
        let mut layout = Self { n_ranks, groups: Vec::new() };
        let all = (0..n_ranks).collect();
        for members in std::iter::once(&all).chain(groups) {
            assert!(members.iter().all(|&rank| rank < n_ranks), "a group of ranks that are there");
            let first = layout.n_memberships();
            layout.groups.push(Group { members: members.clone(), first });
        }
        layout
    }

    pub(super) fn n_ranks(&self) -> usize {
        self.n_ranks
    }

    /// The ranks in a group; `None` if there is no such group.
    pub(super) fn members(&self, group_idx: usize) -> Option<&[usize]> {
        self.groups.get(group_idx).map(|group| &*group.members)
    }

    fn n_memberships(&self) -> usize {
        self.groups.last().map_or(0, |group| group.first + group.members.len())
    }

    fn n_mailboxes(&self) -> usize {
        self.n_ranks * self.n_ranks
    }

    pub(super) fn sizes(&self) -> SharedSizes {
        let n_flags = 2 * self.n_ranks + 2 * self.n_memberships() + 4 * self.n_mailboxes();
        let n_words = 2 * self.n_memberships() * SLOT_WORDS + self.n_mailboxes() * MAILBOX_WORDS;
        SharedSizes { n_flags: n_flags * FLAG_STRIDE, n_words }
    }

    /// Index of the flag that a rank increments to renew its lease.
    pub(super) fn heartbeat(&self, rank: usize) -> usize {
        rank * FLAG_STRIDE
    }

    /// Offset of the flag for the end of a rank.
    pub(super) fn ended(&self, rank: usize) -> usize {
        (self.n_ranks + rank) * FLAG_STRIDE
    }

    /// The rounds that a member of a group has published, and the number of threads that sleep until it
    /// publishes another.
    pub(super) fn rounds(&self, group_idx: usize, member: usize) -> [usize; 2] {
        let first = 2 * self.n_ranks + 2 * (self.groups[group_idx].first + member);
        [first, first + 1].map(|flag| flag * FLAG_STRIDE)
    }

    /// A member's slot for rounds of this parity.
    pub(super) fn slot(&self, group_idx: usize, member: usize, parity: usize) -> Range<usize> {
        let first = (2 * (self.groups[group_idx].first + member) + parity) * SLOT_WORDS;
        first..first + SLOT_WORDS
    }

    /// Counters of the mailbox from one rank to another: the words that were sent and those that were taken,
    /// each with the number of threads that sleep until it changes.
    pub(super) fn mailbox_flags(&self, from: usize, to: usize) -> [[usize; 2]; 2] {
        let first = 2 * self.n_ranks + 2 * self.n_memberships() + 4 * (from * self.n_ranks + to);
        [[first, first + 1], [first + 2, first + 3]].map(|pair| pair.map(|flag| flag * FLAG_STRIDE))
    }

    /// Range of the words of a mailbox.
    pub(super) fn mailbox(&self, from: usize, to: usize) -> Range<usize> {
        let first = 2 * self.n_memberships() * SLOT_WORDS + (from * self.n_ranks + to) * MAILBOX_WORDS;
        first..first + MAILBOX_WORDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_has_the_place_of_something_else() {
        let layout = Layout::new(4, &[vec![0, 1], vec![2, 3]]);
        let groups = [0..4, 0..2, 0..2].into_iter().enumerate();
        let members: Vec<(usize, usize)> = groups.flat_map(|(g, n)| n.map(move |m| (g, m))).collect();
        let pairs: Vec<(usize, usize)> = (0..4).flat_map(|from| (0..4).map(move |to| (from, to))).collect();
        let mut flags: Vec<usize> = (0..4).flat_map(|r| [layout.heartbeat(r), layout.ended(r)]).collect();
        flags.extend(members.iter().flat_map(|&(g, m)| layout.rounds(g, m)));
        flags.extend(pairs.iter().flat_map(|&(from, to)| layout.mailbox_flags(from, to).concat()));
        let mut words: Vec<Range<usize>> = Vec::new();
        words.extend(members.iter().flat_map(|&(g, m)| [0, 1].map(|parity| layout.slot(g, m, parity))));
        words.extend(pairs.iter().map(|&(from, to)| layout.mailbox(from, to)));
        flags.sort_unstable();
        words.sort_unstable_by_key(|range| range.start);
        let sizes = layout.sizes();
        assert!(flags.windows(2).all(|pair| pair[0] + FLAG_STRIDE == pair[1]));
        assert_eq!(flags.last().map(|last| last + FLAG_STRIDE), Some(sizes.n_flags));
        assert!(words.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!(words.last().map(|last| last.end), Some(sizes.n_words));
    }
}
