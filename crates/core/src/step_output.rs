//! What an executor answers to a batch: tokens, log-probabilities, faults of single rows and drafts for the next step, in
//! flat buffers that are reused. Does not know how tokens are chosen.

use std::ops::Range;

use crate::constraint::ConstraintError;
use crate::request::TokenId;
use crate::time::Nanos;

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
    drafts: Vec<TokenId>,
}

#[derive(Debug, Clone)]
struct RowRanges {
    prompt: Range<usize>,
    sampled: Range<usize>,
    drafts: Range<usize>,
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
    /// The constraint and the sampling parameters together allow no token.
    #[error("no token is left that the constraint allows")]
    NothingAllowed,
    /// The constraint gave no mask.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// The executor does not have the adapter that the row names.
    #[error("the adapter is unknown")]
    UnknownAdapter,
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
        self.drafts.clear();
    }

    /// Begins the next row; the other methods that add something add it to this row.
    pub fn begin_row(&mut self) {
        let (end, n_drafts) = (self.chosen.len(), self.drafts.len());
        let drafts = n_drafts..n_drafts;
        self.rows.push(RowRanges { prompt: end..end, sampled: end..end, drafts, error: None });
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

    /// Adds an output token, in order of position: one for each accepted draft, and the one after them.
    pub fn push_sampled(&mut self, chosen: TokenLogprob, top: &[TokenLogprob]) {
        self.push(chosen, top);
        let end = self.chosen.len();
        self.rows.last_mut().expect("begin_row comes first").sampled.end = end;
    }

    /// Proposes a token for the row's next step: the draft after the tokens that were added and those drafts that were
    /// pushed before. The scheduler uses as many as there is room for.
    pub fn push_draft(&mut self, token: TokenId) {
        self.drafts.push(token);
        self.rows.last_mut().expect("begin_row comes first").drafts.end = self.drafts.len();
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

    /// The output tokens of row `row_idx`: where the row sampled, one more than drafts were accepted; else none.
    pub fn sampled(&self, row_idx: usize) -> impl ExactSizeIterator<Item = ChosenToken<'_>> {
        self.view(self.rows[row_idx].sampled.clone())
    }

    /// The drafts proposed for the next step of row `row_idx`.
    pub fn drafts(&self, row_idx: usize) -> &[TokenId] {
        &self.drafts[self.rows[row_idx].drafts.clone()]
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
