//! One step in flight: what the scheduler hands to an executor and what comes back. Flat buffers that are
//! reused from step to step, so that a steady state allocates nothing. Does not know how either side decides.

use std::ops::Range;
use std::sync::Arc;

use crate::constraint::TokenConstraint;
use crate::request::{AdapterId, SamplingParams, SequenceId, TokenId};
pub use crate::step_output::{ChosenToken, RowError, StepOutput, TokenLogprob};

/// Tokens in one KV block.
pub const BLOCK_TOKENS: usize = 16;

/// An index into the KV cache, in blocks of [`BLOCK_TOKENS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// One step's work over several sequences.
///
/// A row's new tokens stand at positions `start..start + n`; the executor writes their keys and values into the
/// row's blocks and lets each attend to every position up to its own. Position `p` lives in slot `p % 16` of the
/// row's block `p / 16`. A sequence may appear once a step.
///
/// The last `n_drafts` new tokens of a row are drafts: guesses of its next output tokens. The executor chooses a token after
/// the last token before them and after each of them, each with the history, constraint and random numbers of its own
/// position. It answers with the chosen tokens up to the first that differs from the draft in its place, or all `n_drafts +
/// 1`. A token at a position before an accepted draft does not depend on the drafts after it, so the answer is what as many
/// steps without drafts would have given.
#[derive(Debug, Default)]
pub struct ScheduledBatch {
    rows: Vec<ScheduledRow>,
    tokens: Vec<TokenId>,
    blocks: Vec<BlockId>,
    history: Vec<TokenId>,
    output: Vec<TokenId>,
}

/// One sequence's share of a step.
#[derive(Debug)]
pub struct ScheduledRow {
    /// Whose step it is.
    pub sequence: SequenceId,
    /// Position of the first new token.
    pub start: u32,
    /// Length of the request's prompt in tokens.
    pub n_prompt: u32,
    /// The token after the last new one, where the prompt already tells it (wanted for prompt log-probabilities).
    pub next_prompt_token: Option<TokenId>,
    /// Whether output tokens are chosen, the first of them at position `start + n_tokens - n_drafts`.
    pub sample: bool,
    /// How many of the new tokens, at their end, are drafts; 0 unless `sample`.
    pub n_drafts: usize,
    /// How to choose.
    pub sampling: Arc<SamplingParams>,
    /// What restricts the output tokens, if anything.
    pub constraint: Option<Arc<dyn TokenConstraint>>,
    /// The adapter to apply to the model's weights, if any.
    pub adapter: Option<AdapterId>,
    tokens: Range<usize>,
    blocks: Range<usize>,
    history: Range<usize>,
    output: Range<usize>,
}

/// What [`ScheduledBatch::push`] takes: one row with its slices.
#[derive(Debug)]
pub struct NewRow<'a> {
    /// Whose step it is.
    pub sequence: SequenceId,
    /// Position of the first new token.
    pub start: u32,
    /// Length of the request's prompt in tokens.
    pub n_prompt: u32,
    /// The token after the last new one, where the prompt already tells it.
    pub next_prompt_token: Option<TokenId>,
    /// Whether output tokens are chosen after the last of `tokens` and after each draft.
    pub sample: bool,
    /// How to choose.
    pub sampling: Arc<SamplingParams>,
    /// What restricts the output tokens, if anything.
    pub constraint: Option<Arc<dyn TokenConstraint>>,
    /// The adapter to apply to the model's weights, if any.
    pub adapter: Option<AdapterId>,
    /// The new tokens that are known, at least one.
    pub tokens: &'a [TokenId],
    /// Guesses of the tokens after them; only where `sample`.
    pub drafts: &'a [TokenId],
    /// The blocks of positions `0..start + tokens.len() + drafts.len()`, in order.
    pub blocks: &'a [BlockId],
    /// Prompt and output so far, `tokens` included, when sampling reads them; else empty.
    pub history: &'a [TokenId],
    /// Output so far, `tokens` included, when there is a constraint; else empty.
    pub output: &'a [TokenId],
}

impl ScheduledBatch {
    /// Empties the batch and keeps its buffers.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.tokens.clear();
        self.blocks.clear();
        self.history.clear();
        self.output.clear();
    }

    /// Adds a row.
    ///
    /// # Panics
    /// When the row has no new token, fewer blocks than its positions need, or drafts without sampling.
    pub fn push(&mut self, row: NewRow<'_>) {
        let end = row.start as usize + row.tokens.len() + row.drafts.len();
        assert!(!row.tokens.is_empty(), "a row without a new token");
        assert!(row.blocks.len() * BLOCK_TOKENS >= end, "a row without blocks for its positions");
        assert!(row.sample || row.drafts.is_empty(), "drafts that nothing is compared with");
        let (history_drafts, output_drafts): (&[TokenId], &[TokenId]) = (
            if row.history.is_empty() { &[] } else { row.drafts },
            if row.constraint.is_none() { &[] } else { row.drafts },
        );
        self.rows.push(ScheduledRow {
            sequence: row.sequence,
            start: row.start,
            n_prompt: row.n_prompt,
            next_prompt_token: row.next_prompt_token,
            sample: row.sample,
            n_drafts: row.drafts.len(),
            sampling: row.sampling,
            constraint: row.constraint,
            adapter: row.adapter,
            tokens: append_both(&mut self.tokens, row.tokens, row.drafts),
            blocks: append_both(&mut self.blocks, row.blocks, &[]),
            history: append_both(&mut self.history, row.history, history_drafts),
            output: append_both(&mut self.output, row.output, output_drafts),
        });
    }

    /// The rows, in the order in which the output answers them.
    pub fn rows(&self) -> &[ScheduledRow] {
        &self.rows
    }

    /// The new tokens of all rows, drafts included, one row after the other.
    pub fn all_tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// The new tokens of a row of this batch: those that are known, then the drafts.
    pub fn tokens(&self, row: &ScheduledRow) -> &[TokenId] {
        &self.tokens[row.tokens.clone()]
    }

    /// The drafts of a row of this batch.
    pub fn drafts(&self, row: &ScheduledRow) -> &[TokenId] {
        &self.tokens[row.tokens.end - row.n_drafts..row.tokens.end]
    }

    /// The block table of a row of this batch.
    pub fn blocks(&self, row: &ScheduledRow) -> &[BlockId] {
        &self.blocks[row.blocks.clone()]
    }

    /// What stands before the token to choose after the row's first `n_accepted` drafts: prompt, output so far and those
    /// drafts, when the row's sampling reads them; else empty.
    pub fn history(&self, row: &ScheduledRow, n_accepted: usize) -> &[TokenId] {
        let history = &self.history[row.history.clone()];
        &history[..history.len().saturating_sub(row.n_drafts - n_accepted)]
    }

    /// The output before the token to choose after the row's first `n_accepted` drafts, when the row has a constraint; else
    /// empty.
    pub fn output(&self, row: &ScheduledRow, n_accepted: usize) -> &[TokenId] {
        let output = &self.output[row.output.clone()];
        &output[..output.len().saturating_sub(row.n_drafts - n_accepted)]
    }

    /// New tokens over all rows, drafts included.
    pub fn n_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

impl ScheduledRow {
    /// How many new tokens the row has, drafts included.
    pub fn n_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// How many of the new tokens are known.
    pub fn n_known(&self) -> usize {
        self.tokens.len() - self.n_drafts
    }

    /// The row's new tokens as a range of [`ScheduledBatch::all_tokens`].
    pub fn token_range(&self) -> Range<usize> {
        self.tokens.clone()
    }
}

/// Appends one after the other and says where both stand.
fn append_both<T: Copy>(buffer: &mut Vec<T>, first: &[T], second: &[T]) -> Range<usize> {
    let start = buffer.len();
    buffer.extend_from_slice(first);
    buffer.extend_from_slice(second);
    start..buffer.len()
}
