//! Work on the features of pictures that a step does before it computes tokens. Does not know encoders.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::prompt_media::{PromptMedia, PromptSpan};
use crate::request::SequenceId;
use crate::scheduling::block_hash::BlockHash;

/// Share of a work that is done in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkShare {
    /// Number of parts that are done.
    pub done: u32,
    /// Number of parts in all, at least one.
    pub all: u32,
}

impl WorkShare {
    /// All work on a content.
    pub const WHOLE: Self = Self { done: 1, all: 1 };

    /// Whether all parts are done.
    pub fn is_whole(&self) -> bool {
        self.done >= self.all
    }

    /// Number of `n` things that the share is, rounded up.
    pub fn of(&self, n: usize) -> usize {
        let part = (n as u128 * u128::from(self.done)).div_ceil(u128::from(self.all.max(1)));
        usize::try_from(part).unwrap_or(usize::MAX).min(n)
    }
}

/// Work on the features of a span's content. A step does it before it computes tokens. The work continues
/// where earlier steps left it; an executor that has lost their part repeats it, one that has the features
/// does nothing.
#[derive(Debug, Clone)]
pub struct ScheduledEncoding {
    /// The sequence whose prompt has the span.
    pub id: SequenceId,
    /// Parts of its prompt that are not tokens.
    pub media: Arc<PromptMedia>,
    /// Root of the names of the sequence's blocks; `None` if it is not known.
    pub media_scope: Option<BlockHash>,
    /// Index of the span.
    pub span_idx: usize,
    /// Number of parts in earlier steps.
    pub n_before: u32,
    /// Work that is done after this step. A part is as much as one token of the span is worth.
    pub share: WorkShare,
}

impl ScheduledEncoding {
    /// Span of the prompt.
    pub fn span(&self) -> &PromptSpan {
        &self.media.spans[self.span_idx]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_rounded_up_and_never_more_than_all() {
        let of = |done, all, n| WorkShare { done, all }.of(n);
        assert_eq!([of(0, 3, 10), of(1, 3, 10), of(2, 3, 10), of(3, 3, 10)], [0, 4, 7, 10]);
        assert_eq!(of(5, 3, 10), 10);
        assert_eq!(WorkShare::WHOLE.of(usize::MAX), usize::MAX);
    }
}
