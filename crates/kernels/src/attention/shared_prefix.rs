//! Groups of sequences whose block tables begin with the same KV blocks (one system prompt, many users).
//! Their attention over the shared blocks is computed together, so that those keys and values are read once
//! for the group (cascade attention, as in FlashInfer). Only finds the groups; does not compute.

use super::QuerySpan;
use super::kv::BLOCK_TOKENS;
use super::tiles::SPLIT_BLOCKS;

/// Minimum number of blocks that a group must save reading: one split.
const MIN_SHARED_BLOCKS: usize = SPLIT_BLOCKS;

/// The groups of a batch. They are the same in all layers, so they are found once a step. Keeps its
/// allocations between uses.
#[derive(Debug, Default)]
pub struct SharedPrefixGroups {
    /// Indices of spans, sorted so that the members of a group are adjacent.
    order: Vec<usize>,
    groups: Vec<SharedPrefixGroup>,
    /// Number of splits computed with its group, for each span.
    shared_splits: Vec<usize>,
}

/// Two or more spans whose block tables begin with the same blocks, all of them before each span's first new
/// token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SharedPrefixGroup {
    first: usize,
    n_spans: usize,
    /// Number of blocks shared by all members.
    pub(super) n_blocks: usize,
    /// Number of new tokens of all members.
    pub(super) n_rows: usize,
}

impl SharedPrefixGroup {
    /// Number of splits that are shared completely.
    pub(super) fn n_whole(&self) -> usize {
        self.n_blocks / SPLIT_BLOCKS
    }

    /// Number of splits that are shared completely or in part.
    pub(super) fn n_splits(&self) -> usize {
        self.n_blocks.div_ceil(SPLIT_BLOCKS)
    }
}

impl SharedPrefixGroups {
    /// No shared prefixes, for a batch of any size.
    pub(super) const fn none() -> Self {
        Self { order: Vec::new(), groups: Vec::new(), shared_splits: Vec::new() }
    }

    /// Finds the groups of a batch from its sequences and their concatenated block tables.
    ///
    /// # Panics
    /// When a block table ends before its sequence's first new token.
    pub fn find(&mut self, spans: &[QuerySpan], blocks: &[u32]) {
        self.groups.clear();
        self.shared_splits.clear();
        self.shared_splits.resize(spans.len(), 0);
        self.order.clear();
        let table = |i: usize| {
            let span = &spans[i];
            &blocks[span.first_block..][..span.start / BLOCK_TOKENS]
        };
        self.order.extend((0..spans.len()).filter(|&i| spans[i].n_rows > 0 && !table(i).is_empty()));
        self.order.sort_unstable_by_key(|&i| (table(i), i));
        let mut first = 0;
        while first < self.order.len() {
            let of_first = table(self.order[first]);
            let (mut n_blocks, mut end) = (of_first.len(), first + 1);
            // The next span joins unless the group would then save fewer block reads than without it.
            while let Some(&i) = self.order.get(end) {
                let n_same = of_first.iter().zip(table(i)).take_while(|(a, b)| a == b).count().min(n_blocks);
                if n_same == 0 || n_same * (end - first) < n_blocks * (end - first - 1) {
                    break;
                }
                (n_blocks, end) = (n_same, end + 1);
            }
            let members = &self.order[first..end];
            if n_blocks * (members.len() - 1) >= MIN_SHARED_BLOCKS {
                let n_rows = members.iter().map(|&i| spans[i].n_rows).sum();
                let group = SharedPrefixGroup { first, n_spans: members.len(), n_blocks, n_rows };
                members.iter().for_each(|&i| self.shared_splits[i] = group.n_splits());
                self.groups.push(group);
            }
            first = end;
        }
    }

    pub(super) fn all(&self) -> &[SharedPrefixGroup] {
        &self.groups
    }

    /// The indices of a group's spans.
    pub(super) fn members(&self, group: &SharedPrefixGroup) -> &[usize] {
        &self.order[group.first..][..group.n_spans]
    }

    /// Number of a span's splits that are computed with its group.
    pub(super) fn shared_splits(&self, span: usize) -> usize {
        self.shared_splits.get(span).copied().unwrap_or(0)
    }

    /// Number of spans of the batch for which the groups were found.
    pub(super) fn n_spans_seen(&self) -> usize {
        self.shared_splits.len()
    }
}

/// The new tokens of these spans in order: index of the span, row of the query matrix, position in the
/// sequence.
pub(super) fn rows_of<'a>(
    spans: impl Iterator<Item = (usize, &'a QuerySpan)> + 'a,
) -> impl Iterator<Item = (usize, usize, usize)> + 'a {
    spans.flat_map(|(number, span)| {
        (0..span.n_rows).map(move |i| (number, span.first_row + i, span.start + i))
    })
}

#[cfg(test)]
mod tests {
    use super::super::tiles::SPLIT;
    use super::*;

    /// Builds spans of one token at the given positions. Each block table begins with `n` blocks of each
    /// given list (list `l` has block ids from `100 l` on) and continues with blocks of its own. Returns the
    /// groups and each span's shared splits.
    fn find(spans: &[(usize, &[(u32, u32)])]) -> (Vec<(Vec<usize>, usize)>, Vec<usize>) {
        let (mut blocks, mut own) = (Vec::new(), 10_000..);
        let spans: Vec<QuerySpan> = spans
            .iter()
            .enumerate()
            .map(|(i, (start, lists))| {
                let span = QuerySpan { first_row: i, n_rows: 1, start: *start, first_block: blocks.len() };
                blocks.extend(lists.iter().flat_map(|(list, n)| list * 100..list * 100 + n));
                let (n_blocks, n_shared) = (start / BLOCK_TOKENS + 1, blocks.len() - span.first_block);
                blocks.extend(own.by_ref().take(n_blocks.saturating_sub(n_shared)));
                span
            })
            .collect();
        let mut shared_prefixes = SharedPrefixGroups::none();
        shared_prefixes.find(&spans, &blocks);
        let found =
            shared_prefixes.all().iter().map(|c| (shared_prefixes.members(c).to_vec(), c.n_blocks)).collect();
        (found, (0..spans.len()).map(|i| shared_prefixes.shared_splits(i)).collect())
    }

    #[test]
    fn a_group_shares_the_longest_prefix_common_to_all_its_members() {
        let spans: [(usize, &[(u32, u32)]); 6] = [
            (600, &[(1, 20)]),
            (300, &[(7, 9)]),
            (900, &[(1, 20), (3, 1)]),
            (520, &[(7, 9), (8, 4)]),
            (700, &[(5, 30)]),
            (800, &[(1, 20), (3, 1)]),
        ];
        let (found, shared_splits) = find(&spans);
        assert_eq!(found, [(vec![2, 5, 0], 20), (vec![3, 1], 9)]);
        assert_eq!(shared_splits, [3, 2, 3, 2, 0, 3]);
    }

    #[test]
    fn a_short_common_prefix_does_not_shorten_a_longer_one_of_others() {
        let spans: [(usize, &[(u32, u32)]); 4] = [
            (900, &[(1, 2), (2, 40)]),
            (900, &[(1, 2), (2, 40)]),
            (900, &[(1, 2), (3, 40)]),
            (900, &[(1, 2)]),
        ];
        assert_eq!(find(&spans).0, [(vec![0, 1], 42)]);
    }

    #[test]
    fn only_blocks_before_the_first_new_token_are_shared() {
        let both = |start| find(&[(start, &[(1, 60)]), (9 * SPLIT, &[(1, 60)])]).0;
        assert_eq!(both(SPLIT - 1), [], "seven blocks are below the minimum");
        assert_eq!(both(SPLIT), [(vec![0, 1], 8)]);
        assert_eq!(both(SPLIT + BLOCK_TOKENS - 1), [(vec![0, 1], 8)]);
        assert_eq!(both(SPLIT + BLOCK_TOKENS), [(vec![0, 1], 9)]);
    }
}
