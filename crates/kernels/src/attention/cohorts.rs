//! Sequences of a batch that begin with the same blocks, as users of one system prompt do: they walk those together, so that
//! the keys and values of many are read once. Refuses to compute.

use super::tiles::{SPLIT, SPLIT_BLOCKS};
use super::{QueryBatch, QuerySpan};
use crate::reference::AttentionShape;

/// Who walks together. Keeps its memory between uses.
pub(super) struct Cohorts {
    /// Indices of spans, those of a cohort side by side.
    order: Vec<usize>,
    cohorts: Vec<Cohort>,
    /// Of each span: splits that its cohort walks.
    walked: Vec<usize>,
}

/// Two or more spans whose first splits are the same blocks, all before their first rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cohort {
    first: usize,
    n_spans: usize,
    pub(super) n_splits: usize,
    /// Of all its spans.
    pub(super) n_rows: usize,
}

impl Cohorts {
    pub(super) const fn new() -> Self {
        Self { order: Vec::new(), cohorts: Vec::new(), walked: Vec::new() }
    }

    /// Looks for them in a batch. A window moves with each row, so that there is nothing to walk together.
    pub(super) fn find(&mut self, shape: &AttentionShape, queries: &QueryBatch<'_>) {
        self.cohorts.clear();
        self.walked.clear();
        self.walked.resize(queries.spans.len(), 0);
        self.order.clear();
        if shape.window.is_some() {
            return;
        }
        let table = |i: usize| {
            let span = &queries.spans[i];
            &queries.blocks[span.first_block..][..span.start / SPLIT * SPLIT_BLOCKS]
        };
        let n_spans = queries.spans.len();
        self.order.extend((0..n_spans).filter(|&i| queries.spans[i].n_rows > 0 && !table(i).is_empty()));
        self.order.sort_unstable_by_key(|&i| (&table(i)[..SPLIT_BLOCKS], i));
        let mut first = 0;
        while first < self.order.len() {
            let of_first = table(self.order[first]);
            let (mut n_splits, mut end) = (of_first.len() / SPLIT_BLOCKS, first + 1);
            while let Some(&i) = self.order.get(end) {
                let same = of_first.chunks(SPLIT_BLOCKS).zip(table(i).chunks(SPLIT_BLOCKS));
                match same.take_while(|(a, b)| a == b).count() {
                    0 => break,
                    n => n_splits = n_splits.min(n),
                }
                end += 1;
            }
            let members = &self.order[first..end];
            if members.len() > 1 {
                members.iter().for_each(|&i| self.walked[i] = n_splits);
                let n_rows = members.iter().map(|&i| queries.spans[i].n_rows).sum();
                self.cohorts.push(Cohort { first, n_spans: members.len(), n_splits, n_rows });
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
        self.walked[span]
    }
}

/// Rows of queries of these spans, one after the other, each with its position.
pub(super) fn rows_of<'a>(
    spans: impl Iterator<Item = &'a QuerySpan> + 'a,
) -> impl Iterator<Item = (usize, usize)> + 'a {
    spans.flat_map(|span| (0..span.n_rows).map(|i| (span.first_row + i, span.start + i)))
}

#[cfg(test)]
mod tests {
    use super::super::kv::BLOCK_TOKENS;
    use super::*;

    const SHAPE: AttentionShape =
        AttentionShape { n_heads: 2, n_kv_heads: 1, head_dim: 32, scale: 1.0, softcap: None, window: None };

    /// Spans of one row at these positions, whose tables begin with blocks of these numbers times 100 and go on with their own.
    fn find(window: Option<usize>, spans: &[(usize, &[u32])]) -> (Vec<(Vec<usize>, usize)>, Vec<usize>) {
        let (mut blocks, mut own) = (Vec::new(), 10_000..);
        let spans: Vec<QuerySpan> = spans
            .iter()
            .enumerate()
            .map(|(i, (start, splits))| {
                let span = QuerySpan { first_row: i, n_rows: 1, start: *start, first_block: blocks.len() };
                blocks.extend(splits.iter().flat_map(|s| s * 100..s * 100 + SPLIT_BLOCKS as u32));
                let n_blocks = start / BLOCK_TOKENS + 1;
                blocks.extend(own.by_ref().take(n_blocks.saturating_sub(splits.len() * SPLIT_BLOCKS)));
                span
            })
            .collect();
        let mut cohorts = Cohorts::new();
        let queries = QueryBatch { rows: &[], stride: 0, spans: &spans, blocks: &blocks };
        cohorts.find(&AttentionShape { window, ..SHAPE }, &queries);
        let found = cohorts.all().iter().map(|c| (cohorts.members(c).to_vec(), c.n_splits)).collect();
        (found, (0..spans.len()).map(|i| cohorts.walked(i)).collect())
    }

    #[test]
    fn those_who_begin_alike_walk_together_as_far_as_all_do() {
        let spans: [(usize, &[u32]); 6] =
            [(600, &[1, 2]), (300, &[7]), (900, &[1, 2, 3]), (520, &[7, 8]), (700, &[5]), (800, &[1, 2, 3])];
        let (found, walked) = find(None, &spans);
        assert_eq!(found, [(vec![0, 2, 5], 2), (vec![1, 3], 1)]);
        assert_eq!(walked, [2, 1, 2, 1, 0, 2]);
    }

    #[test]
    fn what_a_row_does_not_see_as_a_whole_is_its_own() {
        let both = |start, window| find(window, &[(start, &[1, 2]), (9 * SPLIT, &[1, 2])]).0;
        assert_eq!(both(SPLIT - 1, None), []);
        assert_eq!(both(SPLIT, None), [(vec![0, 1], 1)]);
        assert_eq!(both(2 * SPLIT - 1, None), [(vec![0, 1], 1)]);
        assert_eq!(both(2 * SPLIT, None), [(vec![0, 1], 2)]);
        assert_eq!(both(2 * SPLIT, Some(64)), []);
    }
}
