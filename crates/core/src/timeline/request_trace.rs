//! Where an engine spent the time of one request: causes of waiting, the steps that computed it, and the
//! number of other sequences in them. All times count from the request's arrival, so that they can be sent
//! to other processes. Names no other request. Does not know a clock.

use crate::time::{Nanos, Timestamp};

/// Maximum number of prompt chunks that are kept singly; later ones are only part of the totals.
pub const MAX_TRACED_CHUNKS: usize = 32;

/// Cause that kept the first request of the queue from starting in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueCause {
    /// The maximum number of sequences ran.
    Sequences,
    /// The KV cache had no free blocks for the request.
    Blocks,
    /// The tokens or the time of the step were used up.
    StepTokens,
}

/// Waiting times of requests, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueWaits {
    /// Wait because of [`QueueCause::Sequences`].
    pub sequences: Nanos,
    /// Wait because of [`QueueCause::Blocks`].
    pub blocks: Nanos,
    /// Wait because of [`QueueCause::StepTokens`].
    pub step_tokens: Nanos,
}

impl QueueWaits {
    /// Adds a wait.
    pub fn add(&mut self, cause: QueueCause, wait: Nanos) {
        let sum = match cause {
            QueueCause::Sequences => &mut self.sequences,
            QueueCause::Blocks => &mut self.blocks,
            QueueCause::StepTokens => &mut self.step_tokens,
        };
        *sum = Nanos(sum.0.saturating_add(wait.0));
    }

    /// Difference from `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let less = |now: Nanos, then: Nanos| Nanos(now.0.saturating_sub(then.0));
        Self {
            sequences: less(self.sequences, earlier.sequences),
            blocks: less(self.blocks, earlier.blocks),
            step_tokens: less(self.step_tokens, earlier.step_tokens),
        }
    }
}

/// Share of a request's sequence in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepShare {
    /// Time at which the step was planned.
    pub started: Timestamp,
    /// Duration of the step.
    pub duration: Nanos,
    /// Part of the duration in the executor.
    pub executing: Nanos,
    /// Position of the first new token.
    pub start: u32,
    /// Number of new tokens, drafts included.
    pub n_tokens: u32,
    /// Number of new tokens that are drafts.
    pub n_drafts: u32,
    /// Whether the new tokens belong to the prompt.
    pub is_prompt: bool,
    /// Number of sequences in the step, those of the request included.
    pub n_sequences: u32,
    /// Number of new tokens of the whole step.
    pub n_step_tokens: u32,
}

/// A chunk of the prompt that was computed in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptChunk {
    /// Time at which the step was planned.
    pub at: Nanos,
    /// Duration of the step.
    pub took: Nanos,
    /// Position of the first token.
    pub start: u32,
    /// Number of prompt tokens.
    pub n_tokens: u32,
    /// Number of other sequences in the step.
    pub n_mates: u32,
    /// Number of new tokens of the whole step.
    pub n_step_tokens: u32,
}

/// Totals of several shares. A step in which two continuations of the request had shares counts twice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepTotals {
    /// Number of shares.
    pub n_steps: u32,
    /// Duration of their steps.
    pub took: Nanos,
    /// Part of that duration in the executor.
    pub executing: Nanos,
    /// Duration of the longest step.
    pub longest: Nanos,
    /// Number of new tokens, drafts included.
    pub n_tokens: u32,
    /// Number of new tokens that were drafts.
    pub n_drafts: u32,
    /// Maximum number of other sequences in one of the steps.
    pub max_mates: u32,
    /// Number of other sequences, summed over the steps.
    pub sum_mates: u64,
}

impl StepTotals {
    fn add(&mut self, share: &StepShare) {
        let n_mates = share.n_sequences.saturating_sub(1);
        self.n_steps += 1;
        self.took = Nanos(self.took.0.saturating_add(share.duration.0));
        self.executing = Nanos(self.executing.0.saturating_add(share.executing.0));
        self.longest = self.longest.max(share.duration);
        self.n_tokens += share.n_tokens;
        self.n_drafts += share.n_drafts;
        self.max_mates = self.max_mates.max(n_mates);
        self.sum_mates += u64::from(n_mates);
    }
}

/// Trace of one request's time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestTrace {
    /// Time until its first step, or its end if it never had one.
    pub queued: Nanos,
    /// Waiting times by cause, as far as steps began meanwhile; the rest is the end of the step that ran at
    /// the arrival.
    pub waits: QueueWaits,
    /// First chunks of the prompt, at most [`MAX_TRACED_CHUNKS`].
    pub chunks: Vec<PromptChunk>,
    /// Totals of the shares that computed the prompt.
    pub prefill: StepTotals,
    /// Totals of the shares that computed the output.
    pub decode: StepTotals,
    /// Number of preemptions: a sequence of the request lost its blocks and waited again.
    pub n_preemptions: u32,
    /// Number of times that it was paused because its reader was behind.
    pub n_pauses: u32,
    /// Number of tokens whose keys and values were brought back from a store.
    pub restored_tokens: u32,
    /// Number of tokens whose keys and values came from another engine.
    pub pulled_tokens: u32,
    /// Time for which its sequences waited for them.
    pub restoring: Nanos,
    /// Time for which it was paused.
    pub paused: Nanos,
    /// Time from the arrival to the end of the request.
    pub end: Nanos,
}

impl RequestTrace {
    /// Adds the share of one of its sequences in a step that has ended.
    pub fn add(&mut self, share: &StepShare, arrived: Timestamp) {
        if !share.is_prompt {
            return self.decode.add(share);
        }
        self.prefill.add(share);
        if self.chunks.len() < MAX_TRACED_CHUNKS {
            self.chunks.push(PromptChunk {
                at: share.started.since(arrived),
                took: share.duration,
                start: share.start,
                n_tokens: share.n_tokens,
                n_mates: share.n_sequences.saturating_sub(1),
                n_step_tokens: share.n_step_tokens,
            });
        }
    }

    /// Queueing time that no cause accounts for: the end of the step that ran at the arrival.
    pub fn waited_for_step(&self) -> Nanos {
        let known = self.waits.sequences.0 + self.waits.blocks.0 + self.waits.step_tokens.0;
        Nanos(self.queued.0.saturating_sub(known))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_chunks_have_a_bound() {
        let at = |ms| Timestamp::default() + Nanos::from_ms(ms);
        let mut trace = RequestTrace::default();
        let share = StepShare {
            started: at(30),
            duration: Nanos::from_ms(20),
            executing: Nanos::from_ms(15),
            start: 16,
            n_tokens: 8,
            n_drafts: 0,
            is_prompt: true,
            n_sequences: 3,
            n_step_tokens: 10,
        };
        (0..=MAX_TRACED_CHUNKS).for_each(|_| trace.add(&share, at(10)));
        trace.add(&StepShare { is_prompt: false, n_tokens: 3, n_drafts: 2, n_sequences: 1, ..share }, at(10));
        assert_eq!(trace.chunks.len(), MAX_TRACED_CHUNKS);
        assert_eq!((trace.chunks[0].at, trace.chunks[0].n_mates), (Nanos::from_ms(20), 2));
        assert_eq!(trace.prefill.n_steps as usize, MAX_TRACED_CHUNKS + 1);
        assert_eq!(trace.prefill.longest, Nanos::from_ms(20));
        assert_eq!((trace.decode.n_drafts, trace.decode.max_mates), (2, 0));
    }

    #[test]
    fn waits_are_what_was_added_between_two_looks() {
        let mut waits = QueueWaits::default();
        waits.add(QueueCause::Blocks, Nanos(5));
        let before = waits;
        waits.add(QueueCause::Blocks, Nanos(7));
        waits.add(QueueCause::Sequences, Nanos(1));
        let trace = RequestTrace { queued: Nanos(10), waits: waits.since(&before), ..Default::default() };
        assert_eq!(trace.waits, QueueWaits { sequences: Nanos(1), blocks: Nanos(7), step_tokens: Nanos(0) });
        assert_eq!(trace.waited_for_step(), Nanos(2));
    }
}
