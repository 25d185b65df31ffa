//! Sequences of a batch that begin with the same blocks, as users of one system prompt do: they walk those together, so that
//! the keys and values of many are read once. Refuses to compute.

use super::QuerySpan;
use super::kv::BLOCK_TOKENS;
use super::tiles::SPLIT_BLOCKS;

/// Blocks that must be saved from being walked again, to be worth it: a split's.
const WORTH_WALKING: usize = SPLIT_BLOCKS;

/// Which sequences of a batch walk together: the same in all layers, so that it is found once a step. Keeps its memory
/// between uses.
#[derive(Debug, Default)]
pub struct Cohorts {
    /// Indices of spans, those of a cohort side by side.
    order: Vec<usize>,
    cohorts: Vec<Cohort>,
    /// Of each span: splits that it walks with its cohort.
    walked: Vec<usize>,
}

/// Two or more spans that begin with the same blocks, all before their first rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cohort {
    first: usize,
    n_spans: usize,
    /// That all of them begin with.
    pub(super) n_blocks: usize,
    /// Of all its spans.
    pub(super) n_rows: usize,
}

impl Cohort {
    /// Splits that are its own as a whole.
    pub(super) fn n_whole(&self) -> usize {
        self.n_blocks / SPLIT_BLOCKS
    }

    /// Splits of which a part or all is its own.
    pub(super) fn n_splits(&self) -> usize {
        self.n_blocks.div_ceil(SPLIT_BLOCKS)
    }
}

impl Cohorts {
    /// Nobody walks with anybody, in a batch of any size.
    pub(super) const fn none() -> Self {
        Self { order: Vec::new(), cohorts: Vec::new(), walked: Vec::new() }
    }

    /// Looks for them in a batch: its sequences, and all their block tables one after the other.
    ///
    /// # Panics
    /// When a block table ends before its sequence's first new token.
    pub fn find(&mut self, spans: &[QuerySpan], blocks: &[u32]) {
        self.cohorts.clear();
        self.walked.clear();
        self.walked.resize(spans.len(), 0);
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
            // The next one joins unless what all then begin with saves less than what they do without it.
            while let Some(&i) = self.order.get(end) {
                let n_same = of_first.iter().zip(table(i)).take_while(|(a, b)| a == b).count().min(n_blocks);
                if n_same == 0 || n_same * (end - first) < n_blocks * (end - first - 1) {
                    break;
                }
                (n_blocks, end) = (n_same, end + 1);
            }
            let members = &self.order[first..end];
            if n_blocks * (members.len() - 1) >= WORTH_WALKING {
                let n_rows = members.iter().map(|&i| spans[i].n_rows).sum();
                let cohort = Cohort { first, n_spans: members.len(), n_blocks, n_rows };
                members.iter().for_each(|&i| self.walked[i] = cohort.n_splits());
                self.cohorts.push(cohort);
            }
            first = end;
        }
    }

    pub(super) fn all(&self) -> &[Cohort] {
        &self.cohorts
    }

    /// The indices of a cohort's spans.
    pub(super) fn members(&self, cohort: &Cohort) -> &[usize] {
        &self.order[cohort.first..][..cohort.n_spans]
    }

    /// Splits that a span need not walk by itself.
    pub(super) fn walked(&self, span: usize) -> usize {
        self.walked.get(span).copied().unwrap_or(0)
    }

    /// Of how many spans they were found.
    pub(super) fn n_spans_seen(&self) -> usize {
        self.walked.len()
    }
}

/// Rows of queries of these spans, one after the other: the span's number, the row, its position.
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

    /// Spans of one row at these positions, whose tables begin with so many blocks of these lists, numbered from a hundred
    /// times the list's number on, and go on with their own.
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
        let mut cohorts = Cohorts::none();
        cohorts.find(&spans, &blocks);
        let found = cohorts.all().iter().map(|c| (cohorts.members(c).to_vec(), c.n_blocks)).collect();
        (found, (0..spans.len()).map(|i| cohorts.walked(i)).collect())
    }

    #[test]
    fn those_who_begin_alike_walk_together_as_far_as_all_do() {
        let spans: [(usize, &[(u32, u32)]); 6] = [
            (600, &[(1, 20)]),
            (300, &[(7, 9)]),
            (900, &[(1, 20), (3, 1)]),
            (520, &[(7, 9), (8, 4)]),
            (700, &[(5, 30)]),
            (800, &[(1, 20), (3, 1)]),
        ];
        let (found, walked) = find(&spans);
        assert_eq!(found, [(vec![2, 5, 0], 20), (vec![3, 1], 9)]);
        assert_eq!(walked, [3, 2, 3, 2, 0, 3]);
    }

    #[test]
    fn who_shares_little_does_not_keep_others_from_sharing_much() {
        let spans: [(usize, &[(u32, u32)]); 4] = [
            (900, &[(1, 2), (2, 40)]),
            (900, &[(1, 2), (2, 40)]),
            (900, &[(1, 2), (3, 40)]),
            (900, &[(1, 2)]),
        ];
        assert_eq!(find(&spans).0, [(vec![0, 1], 42)]);
    }

    #[test]
    fn what_a_row_does_not_see_as_a_whole_is_its_own() {
        let both = |start| find(&[(start, &[(1, 60)]), (9 * SPLIT, &[(1, 60)])]).0;
        assert_eq!(both(SPLIT - 1), [], "seven blocks are not worth it");
        assert_eq!(both(SPLIT), [(vec![0, 1], 8)]);
        assert_eq!(both(SPLIT + BLOCK_TOKENS - 1), [(vec![0, 1], 8)]);
        assert_eq!(both(SPLIT + BLOCK_TOKENS), [(vec![0, 1], 9)]);
    }
}
