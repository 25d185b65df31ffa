//! Shares of sequences that decode one token each, for executors that compute no tokens, such as simulators.
//! They leave out all that only a forward pass reads: tokens, blocks, sampling parameters. Does not know
//! which sequences qualify.

use super::ScheduledBatch;
use crate::request::SequenceId;

/// Share of a sequence whose one new token is its newest output token, and which samples the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlainShare {
    /// Id of the sequence.
    pub id: SequenceId,
    /// Position of the new token.
    pub start: u32,
    /// Number of output tokens before the sampled one.
    pub n_output: u32,
    /// Number of the batch's other sequences that stand before it.
    pub(crate) n_before: u32,
    /// Number of requests that arrived before the sequence's request, by which it is found.
    pub(crate) arrival: u64,
}

impl ScheduledBatch {
    /// Adds a share behind all sequences and shares so far.
    pub(crate) fn push_plain(&mut self, id: SequenceId, arrival: u64, start: usize, n_output: usize) {
        self.plain.push(PlainShare {
            id,
            start: start as u32,
            n_output: n_output as u32,
            n_before: self.sequences.len() as u32,
            arrival,
        });
    }

    /// Shares without content, beside [`Self::sequences`]. Empty for real executors.
    pub fn plain_shares(&self) -> &[PlainShare] {
        &self.plain
    }

    /// Number of sequences with a share in the step.
    pub fn n_shares(&self) -> usize {
        self.sequences.len() + self.plain.len()
    }
}
