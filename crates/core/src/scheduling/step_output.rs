//! An executor's answer to a batch: tokens, log-probabilities, failures of single sequences and drafts for
//! the next step, in flat buffers that are reused. Does not know how tokens are chosen.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::constraint::ConstraintError;
use crate::request::TokenId;
use crate::time::Nanos;

/// A token with its log-probability and its rank (1 = the most likely). Serialized as a list of the three,
/// with the bits of the log-probability.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(from = "(TokenId, u32, u32)", into = "(TokenId, u32, u32)")]
pub struct TokenLogprob {
    /// Id of the token.
    pub token: TokenId,
    /// Natural logarithm of its probability under the model, before any sampling parameter.
    pub logprob: f32,
    /// One more than the number of tokens that are more likely.
    pub rank: u32,
}

impl From<TokenLogprob> for (TokenId, u32, u32) {
    fn from(one: TokenLogprob) -> Self {
        (one.token, one.logprob.to_bits(), one.rank)
    }
}

impl From<(TokenId, u32, u32)> for TokenLogprob {
    fn from((token, logprob, rank): (TokenId, u32, u32)) -> Self {
        Self { token, logprob: f32::from_bits(logprob), rank }
    }
}

/// Results of a step: one entry a sequence, in the batch's order, over flat buffers that are reused.
#[derive(Debug, Default)]
pub struct StepOutput {
    /// Time of choosing tokens from logits, if the executor reports it. For records only: no decision may
    /// depend on it.
    pub choosing: Nanos,
    /// Forward passes of a draft model in this step. Only the number of drafts may depend on them.
    pub draft_passes: Vec<DraftPass>,
    /// Pictures of the step. For counters, for the next steps' work on pictures, and so that the time of
    /// encoding is not taken for that of the step's tokens.
    pub media: MediaCounts,
    sequences: Vec<SequenceRanges>,
    chosen: Vec<ChosenRange>,
    top: Vec<TokenLogprob>,
    drafts: Vec<TokenId>,
    own_drafts: Vec<TokenId>,
    plain: Vec<TokenId>,
}

/// Pictures whose features were needed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MediaCounts {
    /// Number of pictures that were encoded.
    pub n_encoded: u32,
    /// Number of pictures whose features were cached before.
    pub n_known: u32,
    /// Parts of the work on pictures that were done, in the sense of
    /// [`WorkShare`](crate::scheduling::batch::WorkShare).
    pub n_parts: u32,
    /// Bit `i` is set if all features of the batch's encoding `i` are ready, or cannot be computed.
    done: u32,
    /// Time of encoding.
    pub took: Nanos,
}

impl MediaCounts {
    /// Notes that encoding `idx` of the batch needs no more work. An index beyond 31 is not noted: that work
    /// is done again.
    pub fn note_done(&mut self, idx: usize) {
        self.done |= u32::try_from(idx).ok().and_then(|idx| 1_u32.checked_shl(idx)).unwrap_or(0);
    }

    /// Whether no more work is to be done on encoding `idx` of the batch.
    pub fn is_done(&self, idx: usize) -> bool {
        idx < 32 && self.done >> idx & 1 == 1
    }
}

/// A forward pass of a draft model, with its shape and duration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DraftPass {
    /// Number of tokens over all sequences.
    pub n_tokens: usize,
    /// Positions that its tokens attend to, summed over tokens.
    pub n_attended: usize,
    /// Duration, choosing tokens included.
    pub took: Nanos,
}

#[derive(Debug, Clone)]
struct SequenceRanges {
    prompt: Range<usize>,
    sampled: Range<usize>,
    drafts: Range<usize>,
    own_drafts: Range<usize>,
    error: Option<SequenceError>,
    is_left_out: bool,
}

#[derive(Debug, Clone)]
struct ChosenRange {
    chosen: TokenLogprob,
    top: Range<usize>,
}

/// Reason why one sequence has no output although the step succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SequenceError {
    /// The logits held a NaN, or no token was left to choose.
    #[error("the model gave logits that are not numbers")]
    InvalidLogits,
    /// The constraint and the sampling parameters together allow no token.
    #[error("no token is left that the constraint allows")]
    NothingAllowed,
    /// The constraint gave no mask.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// The executor does not have the adapter that the sequence names.
    #[error("the adapter is unknown")]
    UnknownAdapter,
    /// A picture of the prompt is missing or unreadable for the model.
    #[error("a picture of the prompt cannot be encoded by this model")]
    UnreadableMedia,
    /// Choosing the token panicked.
    #[error("choosing a token failed")]
    SamplerPanicked,
    /// The executor's answer lacks requested results.
    #[error("the step brought no token")]
    NoToken,
}

/// An output token with the requested log-probabilities.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChosenToken<'a> {
    /// The token; its `logprob` and `rank` are 0 if no log-probabilities were requested.
    pub chosen: TokenLogprob,
    /// The most likely tokens, most likely first; empty unless requested.
    pub top: &'a [TokenLogprob],
}

impl StepOutput {
    /// Empties the output and keeps its buffers.
    pub fn clear(&mut self) {
        self.choosing = Nanos::default();
        self.media = MediaCounts::default();
        self.sequences.clear();
        self.chosen.clear();
        self.top.clear();
        self.drafts.clear();
        self.own_drafts.clear();
        self.plain.clear();
        self.draft_passes.clear();
    }

    /// Adds the token of the next of the batch's
    /// [plain shares](crate::scheduling::batch::ScheduledBatch::plain_shares).
    pub fn push_plain(&mut self, token: TokenId) {
        self.plain.push(token);
    }

    /// Token of a plain share; `None` if the executor gave none.
    pub fn plain(&self, share_idx: usize) -> Option<TokenId> {
        self.plain.get(share_idx).copied()
    }

    /// Begins the next sequence; the other methods that add something add it to this sequence.
    pub fn begin_sequence(&mut self) {
        let (end, n_drafts) = (self.chosen.len(), self.drafts.len());
        let drafts = n_drafts..n_drafts;
        let (sampled, own_drafts) = (end..end, 0..0);
        let (error, is_left_out) = (None, false);
        let prompt = end..end;
        self.sequences.push(SequenceRanges { prompt, sampled, drafts, own_drafts, error, is_left_out });
    }

    /// Adds the log-probability of a prompt token (that of the position after one of the sequence's new
    /// tokens) with the most likely ones. In order of position, before all sampled tokens.
    pub fn push_prompt(&mut self, chosen: TokenLogprob, top: &[TokenLogprob]) {
        self.push(chosen, top);
        let end = self.chosen.len();
        let sequence = self.sequences.last_mut().expect("begin_sequence comes first");
        assert!(sequence.sampled.is_empty(), "prompt log-probabilities come before what is sampled");
        sequence.prompt.end = end;
        sequence.sampled = end..end;
    }

    /// Adds an output token, in order of position: one for each accepted draft, and the one after them.
    pub fn push_sampled(&mut self, chosen: TokenLogprob, top: &[TokenLogprob]) {
        self.push(chosen, top);
        let end = self.chosen.len();
        self.sequences.last_mut().expect("begin_sequence comes first").sampled.end = end;
    }

    /// Adds a vector in the place of an output token, as a pooling model answers: element `i` is the
    /// `logprob` of the `i`th of the tokens in `top`, which is token `i`.
    pub fn push_vector(&mut self, vector: &[f32]) {
        let first = self.top.len();
        let element = |(i, &logprob): (usize, &f32)| TokenLogprob { token: i as TokenId, logprob, rank: 0 };
        self.top.extend(vector.iter().enumerate().map(element));
        let chosen = TokenLogprob { token: 0, logprob: 0.0, rank: 0 };
        self.chosen.push(ChosenRange { chosen, top: first..self.top.len() });
        let end = self.chosen.len();
        self.sequences.last_mut().expect("begin_sequence comes first").sampled.end = end;
    }

    /// Proposes a draft for the sequence's next step, after the tokens that were added and the drafts pushed
    /// before. The scheduler uses as many as fit.
    pub fn push_draft(&mut self, token: TokenId) {
        self.drafts.push(token);
        self.sequences.last_mut().expect("begin_sequence comes first").drafts.end = self.drafts.len();
    }

    /// Sets the drafts that the executor made for sequence `sequence_idx` in this step and verified in it.
    pub fn set_own_drafts(&mut self, sequence_idx: usize, drafts: &[TokenId]) {
        self.sequences[sequence_idx].own_drafts = append(&mut self.own_drafts, drafts);
    }

    /// Marks the sequence as failed.
    pub fn fail_sequence(&mut self, error: SequenceError) {
        self.sequences.last_mut().expect("begin_sequence comes first").error = Some(error);
    }

    /// Marks the sequence as left out: its masks were not evaluated when its token was to be chosen, so
    /// that it has none. Its last token is computed again once they are. Allowed only if
    /// [`may_be_left_out`](crate::scheduling::batch::ScheduledSequence::may_be_left_out) returns true.
    pub fn leave_out_sequence(&mut self) {
        self.sequences.last_mut().expect("begin_sequence comes first").is_left_out = true;
    }

    /// Number of sequences that were answered.
    pub fn n_sequences(&self) -> usize {
        self.sequences.len()
    }

    /// The log-probabilities of prompt tokens of sequence `sequence_idx`.
    pub fn prompt(&self, sequence_idx: usize) -> impl ExactSizeIterator<Item = ChosenToken<'_>> {
        self.view(self.sequences[sequence_idx].prompt.clone())
    }

    /// The output tokens of sequence `sequence_idx`: one more than accepted drafts if the sequence sampled,
    /// else none.
    pub fn sampled(&self, sequence_idx: usize) -> impl ExactSizeIterator<Item = ChosenToken<'_>> {
        self.view(self.sequences[sequence_idx].sampled.clone())
    }

    /// The drafts proposed for the next step of sequence `sequence_idx`.
    pub fn drafts(&self, sequence_idx: usize) -> &[TokenId] {
        &self.drafts[self.sequences[sequence_idx].drafts.clone()]
    }

    /// The drafts that the executor made for sequence `sequence_idx` in this step, in order of position.
    pub fn own_drafts(&self, sequence_idx: usize) -> &[TokenId] {
        &self.own_drafts[self.sequences[sequence_idx].own_drafts.clone()]
    }

    /// Reason why sequence `sequence_idx` failed, if it did.
    pub fn error(&self, sequence_idx: usize) -> Option<SequenceError> {
        self.sequences[sequence_idx].error
    }

    /// Whether sequence `sequence_idx` got no token because its masks were not evaluated.
    pub fn is_left_out(&self, sequence_idx: usize) -> bool {
        self.sequences[sequence_idx].is_left_out
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
