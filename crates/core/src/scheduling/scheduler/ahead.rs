//! Sequences that join the next step before the step that chooses their token has ended: the executor
//! carries the token without the host. If the token ends the sequence, its share in the next step is
//! dropped. Does not know which sequences have room in a step.

use super::SchedulerConfig;
use crate::scheduling::admission::Admission;
use crate::scheduling::sequence::{PlainDecoding, Running, Sequence};

/// State beside the sequence on which carrying a token depends.
pub(super) struct Ahead {
    makes_drafts: bool,
    max_sequence_tokens: usize,
    /// Whether the executor can carry tokens.
    carries: bool,
}

impl Ahead {
    pub(super) fn new(config: &SchedulerConfig, admission: &Admission) -> Self {
        Self {
            makes_drafts: config.max_draft_tokens > 0
                && (config.speculation.looks_up() || config.speculation.asks_draft_model()),
            max_sequence_tokens: admission.max_sequence_tokens(),
            carries: admission.n_stages() == 1,
        }
    }

    /// Whether the token at `position` of a sequence, once chosen, can be carried into the next step: the
    /// host does not need it (for a constraint, penalties, a beam search or drafts), and the sequence does
    /// not end there because of its length.
    pub(super) fn can_carry(&self, sequence: &Sequence<Running>, position: usize) -> bool {
        let (request, n_tokens) = (&sequence.request, position + 1);
        let sampling = &request.sampling;
        let is_needed_on_host = request.constraint.is_some()
            || sampling.reads_history()
            || sampling.beams.is_some()
            || (self.makes_drafts && sampling.max_draft_tokens > 0);
        let is_longest = n_tokens - sequence.n_prompt() >= sampling.max_tokens as usize
            || n_tokens >= self.max_sequence_tokens;
        self.carries && !is_needed_on_host && !is_longest
    }

    /// [`Self::can_carry`] for a sequence with plain shares.
    pub(super) fn can_carry_plain(&self, plain: &PlainDecoding, position: usize) -> bool {
        let (sampling, n_tokens) = (&plain.sampling, position + 1);
        let is_needed_on_host = plain.reads_history || (self.makes_drafts && sampling.max_draft_tokens > 0);
        let is_longest =
            n_tokens - plain.n_prompt >= sampling.max_tokens as usize || n_tokens >= self.max_sequence_tokens;
        self.carries && !is_needed_on_host && !is_longest
    }
}
