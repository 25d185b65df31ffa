//! Result of one pass over a row of logits: whether all are numbers, and the largest of every group of
//! tokens. Later passes read only the groups that matter. Does not know how tokens are chosen.

use throng_core::request::TokenId;
use throng_kernels::logits_reduce::{GROUP, LogitsReducer};

/// Reads rows of logits; its buffers are reused from row to row.
#[derive(Debug, Default)]
pub(super) struct Survey {
    walker: LogitsReducer,
    maxima: Vec<f32>,
    stale: Vec<bool>,
}

/// Logits, none of which is NaN or +∞, with the maxima of their groups.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) logits: &'a [f32],
    /// The largest logit of each group of [`GROUP`] tokens.
    pub(super) maxima: &'a [f32],
    /// The largest logit; −∞ when there is none.
    pub(super) max: f32,
    pub(super) walker: LogitsReducer,
}

impl Survey {
    /// Reads all logits; `None` when one is NaN or +∞.
    pub(super) fn read<'a>(&'a mut self, logits: &'a [f32]) -> Option<Row<'a>> {
        self.maxima.resize(logits.len().div_ceil(GROUP), 0.0);
        self.walker.maxima(logits, &mut self.maxima).then(|| self.row(logits))
    }

    /// Reads logits that differ from those `before` was read from in the tokens `changed` only.
    pub(super) fn read_changed<'a>(
        &'a mut self,
        before: &Self,
        logits: &'a [f32],
        changed: impl Iterator<Item = TokenId>,
    ) -> Option<Row<'a>> {
        self.maxima.clone_from(&before.maxima);
        self.stale.clear();
        self.stale.resize(self.maxima.len(), false);
        for token in changed {
            self.stale[token as usize / GROUP] = true;
        }
        let groups = logits.chunks(GROUP).zip(self.maxima.chunks_mut(1)).zip(&self.stale);
        for ((group, max), _) in groups.filter(|(_, is_stale)| **is_stale) {
            if !self.walker.maxima(group, max) {
                return None;
            }
        }
        Some(self.row(logits))
    }

    /// The row that was read last: `logits` must be the same.
    pub(super) fn row<'a>(&'a self, logits: &'a [f32]) -> Row<'a> {
        let max = self.maxima.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        Row { logits, maxima: &self.maxima, max, walker: self.walker }
    }
}

impl<'a> Row<'a> {
    /// The groups with a logit of at least `floor`, each with its first token.
    pub(super) fn groups_reaching(self, floor: f32) -> impl Iterator<Item = (TokenId, &'a [f32])> {
        let groups = (0..).step_by(GROUP).zip(self.logits.chunks(GROUP)).zip(self.maxima);
        groups.filter(move |(_, max)| **max >= floor).map(|(group, _)| group)
    }

    /// The first token with the largest logit; `None` of an empty row.
    pub(super) fn first_of_largest(self) -> Option<TokenId> {
        let (first, group) = self.groups_reaching(self.max).next()?;
        Some(first + group.iter().position(|&logit| logit == self.max)? as TokenId)
    }

    /// One more than the number of tokens with a greater logit.
    pub(super) fn rank_of(self, logit: f32) -> u32 {
        // Groups that only reach it count none.
        let above = self.groups_reaching(logit).map(|(_, group)| self.walker.count_above(group, logit));
        1 + above.sum::<u32>()
    }
}
