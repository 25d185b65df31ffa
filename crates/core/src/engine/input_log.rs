//! The latest inputs of the core with their times: a log without dropped inputs can be replayed and gives
//! the same effects. Bounded in number and bytes. Does not interpret inputs.

use std::collections::VecDeque;

use crate::request::{Request, SamplingParams, TokenId};
use crate::scheduling::batch::{StepOutput, TokenLogprob};
use crate::time::Timestamp;

use crate::engine::engine_core::{Input, StepDone};

/// Maximum number of entries of an output whose buffers are reused; otherwise the log would accumulate large
/// buffers.
const MAX_REUSED_ENTRIES: usize = 1024;

/// An input and its time.
#[derive(Debug)]
pub struct LoggedInput {
    /// Time that was passed to the core.
    pub now: Timestamp,
    /// The recorded input.
    pub input: Input,
    n_bytes: usize,
}

/// A ring of the latest inputs.
#[derive(Debug)]
pub struct InputLog {
    inputs: VecDeque<LoggedInput>,
    max_inputs: usize,
    max_bytes: usize,
    n_bytes: usize,
    n_forgotten: u64,
    /// Empty outputs whose buffers can be reused.
    spare_outputs: Vec<StepOutput>,
}

impl InputLog {
    /// Creates an empty log of at most `max_inputs` inputs with `max_bytes` bytes of prompts and outputs.
    /// It always keeps the latest.
    pub fn new(max_inputs: usize, max_bytes: usize) -> Self {
        let max_inputs = max_inputs.max(1);
        let inputs = VecDeque::with_capacity(max_inputs.min(1 << 16));
        Self { inputs, max_inputs, max_bytes, n_bytes: 0, n_forgotten: 0, spare_outputs: Vec::new() }
    }

    /// Adds an input, drops the oldest ones beyond the bounds, and returns the added one.
    pub fn push(&mut self, now: Timestamp, input: Input) -> &Input {
        let n_bytes = bytes_of(&input);
        while !self.inputs.is_empty()
            && (self.inputs.len() >= self.max_inputs || self.n_bytes + n_bytes > self.max_bytes)
        {
            self.forget_oldest();
        }
        self.n_bytes += n_bytes;
        self.inputs.push_back(LoggedInput { now, input, n_bytes });
        &self.inputs[self.inputs.len() - 1].input
    }

    /// The kept inputs, oldest first.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = &LoggedInput> {
        self.inputs.iter()
    }

    /// Number of inputs that were dropped. If it is 0, the log is complete from the engine's start.
    pub fn n_forgotten(&self) -> u64 {
        self.n_forgotten
    }

    /// Bytes of prompts and outputs in the log.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Takes the content and keeps the bounds.
    pub fn take(&mut self) -> Self {
        let empty = Self::new(self.max_inputs, self.max_bytes);
        let taken = std::mem::replace(self, empty);
        self.n_forgotten = taken.n_forgotten + taken.inputs.len() as u64;
        taken
    }

    /// Returns an empty output for the next step, with the buffers of a dropped one if there is one, so
    /// that the steady state allocates nothing.
    pub fn spare_output(&mut self) -> StepOutput {
        self.spare_outputs.pop().unwrap_or_default()
    }

    fn forget_oldest(&mut self) {
        let Some(oldest) = self.inputs.pop_front() else { return };
        self.n_bytes -= oldest.n_bytes;
        self.n_forgotten += 1;
        if let Input::StepDone(StepDone { mut output, .. }) = oldest.input
            && self.spare_outputs.is_empty()
            && n_entries(&output) <= MAX_REUSED_ENTRIES
        {
            output.clear();
            self.spare_outputs.push(output);
        }
    }
}

/// Bytes behind the input's pointers; the inputs themselves are bounded by their number.
fn bytes_of(input: &Input) -> usize {
    match input {
        Input::Submit { request, .. } => bytes_of_request(request),
        Input::StepDone(done) => n_entries(&done.output) * size_of::<TokenLogprob>(),
        Input::ExecutorNotMade { reason, .. } => reason.len(),
        Input::StoreOpened { kept, .. } => size_of_val(&**kept),
        Input::ExportBlocks(wanted) => size_of_val(&**wanted),
        Input::Abort(_)
        | Input::AbortSequence(_)
        | Input::ReaderBehind { .. }
        | Input::ReaderCaughtUp(_)
        | Input::MasksEvaluated(_)
        | Input::ExecutorMade { .. }
        | Input::BlockWritten { .. }
        | Input::BlockRead { .. }
        | Input::Drain { .. }
        | Input::Tick => 0,
    }
}

fn bytes_of_request(request: &Request) -> usize {
    let SamplingParams { logit_bias, allowed_token_ids, bad_words, eos_token_ids, stop_token_ids, .. } =
        &*request.sampling;
    let n_tokens = request.n_queued_tokens()
        + allowed_token_ids.as_ref().map_or(0, Vec::len)
        + bad_words.iter().map(Vec::len).sum::<usize>()
        + eos_token_ids.len()
        + stop_token_ids.len();
    let media = request.media.iter().flat_map(|media| &media.contents);
    let n_pixels: usize = media.map(|content| content.n_bytes()).sum();
    let n_salt = request.cache_salt.as_ref().map_or(0, |salt| salt.len());
    n_tokens * size_of::<TokenId>()
        + size_of_val(logit_bias.as_slice())
        + size_of_val(bad_words.as_slice())
        + size_of::<SamplingParams>()
        + n_salt
        + n_pixels
}

/// Number of sequences, tokens, log-probabilities, drafts and passes of an output.
fn n_entries(output: &StepOutput) -> usize {
    let of_sequence = |sequence_idx| {
        let tokens = output.prompt(sequence_idx).chain(output.sampled(sequence_idx));
        1 + output.own_drafts(sequence_idx).len() + tokens.map(|token| 2 + token.top.len()).sum::<usize>()
    };
    2 * output.draft_passes.len() + (0..output.n_sequences()).map(of_sequence).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use crate::request::RequestId;
    use crate::time::Nanos;

    use super::*;
    use crate::engine::engine_core::Epoch;

    fn step(n_top: usize) -> Input {
        let mut output = StepOutput::default();
        output.begin_sequence();
        let token = TokenLogprob { token: 1, logprob: 0.0, rank: 1 };
        output.push_sampled(token, &vec![token; n_top]);
        Input::StepDone(StepDone { epoch: Epoch(0), output, executing: Nanos::default(), result: Ok(()) })
    }

    #[test]
    fn it_keeps_the_latest_inputs_within_both_bounds() {
        let mut log = InputLog::new(4, 1_000);
        for i in 0..10 {
            let input = log.push(Timestamp::from_ns(i), Input::Abort(RequestId(i)));
            assert!(matches!(input, Input::Abort(RequestId(id)) if *id == i));
        }
        let kept: Vec<u64> = log.inputs().map(|logged| logged.now.as_ns()).collect();
        assert_eq!((kept, log.n_forgotten()), (vec![6, 7, 8, 9], 6));

        // An output too large for the bound is kept alone, and gone with the next input.
        log.push(Timestamp::from_ns(10), step(1_000));
        assert_eq!((log.inputs().len(), log.n_forgotten()), (1, 10));
        log.push(Timestamp::from_ns(11), Input::Tick);
        assert_eq!((log.inputs().len(), log.n_bytes()), (1, 0));
    }

    #[test]
    fn what_is_taken_is_forgotten() {
        let mut log = InputLog::new(4, 1_000);
        log.push(Timestamp::default(), Input::Tick);
        let taken = log.take();
        assert_eq!((taken.inputs().len(), taken.n_forgotten()), (1, 0));
        assert_eq!((log.inputs().len(), log.n_forgotten()), (0, 1));
    }

    #[test]
    fn the_buffers_of_a_forgotten_output_are_used_again_unless_they_are_large() {
        let mut log = InputLog::new(1, usize::MAX);
        log.push(Timestamp::default(), step(3));
        log.push(Timestamp::default(), Input::Tick);
        assert_eq!(log.spare_outputs.len(), 1);
        log.spare_output();
        log.push(Timestamp::default(), step(2_000));
        log.push(Timestamp::default(), Input::Tick);
        assert!(log.spare_outputs.is_empty());
    }
}
