//! One step in flight: what the scheduler hands to an executor and what comes back. Flat buffers that are
//! reused from step to step, so that a steady state allocates nothing. Refuses to know how either side decides.

use std::ops::Range;
use std::sync::Arc;

use crate::request::{SamplingParams, SequenceId, TokenId};
use crate::time::Nanos;

/// Tokens in one KV block.
pub const BLOCK_TOKENS: usize = 16;

/// An index into the KV cache, in blocks of [`BLOCK_TOKENS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// One step's work over several sequences.
///
/// A row's new tokens stand at positions `start..start + n`; the executor writes their keys and values into the
/// row's blocks and lets each attend to every position up to its own. Position `p` lives in slot `p % 16` of the
/// row's block `p / 16`. A row may appear once a step.
#[derive(Debug, Default)]
pub struct ScheduledBatch {
    rows: Vec<ScheduledRow>,
    tokens: Vec<TokenId>,
    blocks: Vec<BlockId>,
    history: Vec<TokenId>,
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
    /// Whether the last new token's logits choose an output token. Its position is `start + n`.
    pub sample: bool,
    /// How to choose.
    pub sampling: Arc<SamplingParams>,
    tokens: Range<usize>,
    blocks: Range<usize>,
    history: Range<usize>,
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
    /// Whether an output token is chosen after the last new token.
    pub sample: bool,
    /// How to choose.
    pub sampling: Arc<SamplingParams>,
    /// The new tokens, at least one.
    pub tokens: &'a [TokenId],
    /// The blocks of positions `0..start + tokens.len()`, in order.
    pub blocks: &'a [BlockId],
    /// Prompt and output so far, new tokens included, when sampling reads them; else empty.
    pub history: &'a [TokenId],
}

impl ScheduledBatch {
    /// Empties the batch and keeps its buffers.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.tokens.clear();
        self.blocks.clear();
        self.history.clear();
    }

    /// Adds a row.
    ///
    /// # Panics
    /// When the row has no new token, or fewer blocks than its positions need.
    pub fn push(&mut self, row: NewRow<'_>) {
        let end = row.start as usize + row.tokens.len();
        assert!(!row.tokens.is_empty(), "a row without a new token");
        assert!(row.blocks.len() * BLOCK_TOKENS >= end, "a row without blocks for its positions");
        self.rows.push(ScheduledRow {
            sequence: row.sequence,
            start: row.start,
            n_prompt: row.n_prompt,
            next_prompt_token: row.next_prompt_token,
            sample: row.sample,
            sampling: row.sampling,
            tokens: append(&mut self.tokens, row.tokens),
            blocks: append(&mut self.blocks, row.blocks),
            history: append(&mut self.history, row.history),
        });
    }

    /// The rows, in the order in which the output answers them.
    pub fn rows(&self) -> &[ScheduledRow] {
        &self.rows
    }

    /// The new tokens of all rows, one row after the other.
    pub fn all_tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// The new tokens of a row of this batch.
    pub fn tokens(&self, row: &ScheduledRow) -> &[TokenId] {
        &self.tokens[row.tokens.clone()]
    }

    /// The block table of a row of this batch.
    pub fn blocks(&self, row: &ScheduledRow) -> &[BlockId] {
        &self.blocks[row.blocks.clone()]
    }

    /// Prompt and output so far, when the row's sampling reads them; else empty.
    pub fn history(&self, row: &ScheduledRow) -> &[TokenId] {
        &self.history[row.history.clone()]
    }

    /// New tokens over all rows.
    pub fn n_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

impl ScheduledRow {
    /// How many new tokens the row has.
    pub fn n_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// The row's new tokens as a range of [`ScheduledBatch::all_tokens`].
    pub fn token_range(&self) -> Range<usize> {
        self.tokens.clone()
    }
}

/// A token with its log-probability and its rank (1 = the most likely).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: TokenId,
    /// Natural logarithm of its probability under the model, before any sampling parameter.
    pub logprob: f32,
    /// One more than the number of tokens that are more likely.
    pub rank: u32,
}

/// What a step gave: one entry a row, in the batch's order, over flat buffers that are reused.
#[derive(Debug, Default)]
pub struct StepOutput {
    /// How much of the step went into choosing tokens from logits, where the executor tells. For the record: nothing
    /// may depend on it.
    pub choosing: Nanos,
    rows: Vec<RowRanges>,
    chosen: Vec<ChosenRange>,
    top: Vec<TokenLogprob>,
}

#[derive(Debug, Clone)]
struct RowRanges {
    prompt: Range<usize>,
    sampled: Range<usize>,
    error: Option<RowError>,
}

#[derive(Debug, Clone)]
struct ChosenRange {
    chosen: TokenLogprob,
    top: Range<usize>,
}

/// Why one row has no output although the step succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// The logits held a NaN, or no token was left to choose.
    #[error("the model gave logits that are not numbers")]
    InvalidLogits,
    /// Choosing the token panicked.
    #[error("choosing a token failed")]
    SamplerPanicked,
    /// The executor did not answer what the row asked.
    #[error("the step brought no token")]
    NoToken,
}

/// One token of the output with what was asked to be reported beside it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChosenToken<'a> {
    /// The token; its `logprob` and `rank` are 0 where no log-probabilities were asked for.
    pub chosen: TokenLogprob,
    /// The most likely tokens, most likely first; empty unless asked for.
    pub top: &'a [TokenLogprob],
}

impl StepOutput {
    /// Empties the output and keeps its buffers.
    pub fn clear(&mut self) {
        self.choosing = Nanos::default();
        self.rows.clear();
        self.chosen.clear();
        self.top.clear();
    }

    /// Begins the next row; [`Self::push_prompt`], [`Self::push_sampled`] and [`Self::fail_row`] speak of it.
    pub fn begin_row(&mut self) {
        let end = self.chosen.len();
        self.rows.push(RowRanges { prompt: end..end, sampled: end..end, error: None });
    }

    /// Adds the log-probability of a prompt token (of the position after one of the row's new tokens) with the
    /// most likely ones. In order of position, before anything sampled.
    pub fn push_prompt(&mut self, chosen: TokenLogprob, top: &[TokenLogprob]) {
        self.push(chosen, top);
        let end = self.chosen.len();
        let row = self.rows.last_mut().expect("begin_row comes first");
        assert!(row.sampled.is_empty(), "prompt log-probabilities come before what is sampled");
        row.prompt.end = end;
        row.sampled = end..end;
    }

    /// Adds an output token. A step may settle several of one row (speculation), in order of position.
    pub fn push_sampled(&mut self, chosen: TokenLogprob, top: &[TokenLogprob]) {
        self.push(chosen, top);
        let end = self.chosen.len();
        self.rows.last_mut().expect("begin_row comes first").sampled.end = end;
    }

    /// Marks the row as failed.
    pub fn fail_row(&mut self, error: RowError) {
        self.rows.last_mut().expect("begin_row comes first").error = Some(error);
    }

    /// How many rows were answered.
    pub fn n_rows(&self) -> usize {
        self.rows.len()
    }

    /// The log-probabilities of prompt tokens of row `row_idx`.
    pub fn prompt(&self, row_idx: usize) -> impl ExactSizeIterator<Item = ChosenToken<'_>> {
        self.view(self.rows[row_idx].prompt.clone())
    }

    /// The output tokens of row `row_idx`: one where the row sampled, none where it did not.
    pub fn sampled(&self, row_idx: usize) -> impl ExactSizeIterator<Item = ChosenToken<'_>> {
        self.view(self.rows[row_idx].sampled.clone())
    }

    /// Why row `row_idx` failed, if it did.
    pub fn error(&self, row_idx: usize) -> Option<RowError> {
        self.rows[row_idx].error
    }

    fn push(&mut self, chosen: TokenLogprob, top: &[TokenLogprob]) {
        let top = append(&mut self.top, top);
        self.chosen.push(ChosenRange { chosen, top });
    }

    fn view(&self, range: Range<usize>) -> impl ExactSizeIterator<Item = ChosenToken<'_>> {
        self.chosen[range].iter().map(|c| ChosenToken { chosen: c.chosen, top: &self.top[c.top.clone()] })
    }
}

fn append<T: Copy>(buffer: &mut Vec<T>, items: &[T]) -> Range<usize> {
    let start = buffer.len();
    buffer.extend_from_slice(items);
    start..buffer.len()
}
