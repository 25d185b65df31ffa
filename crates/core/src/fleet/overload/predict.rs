//! Predicts how long a request waits and runs, from the work ahead of it and the time of steps. Does not
//! decide.

use crate::scheduling::ServiceRate;
use crate::time::Nanos;

/// Work ahead of a request, and running work.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Ahead {
    /// Number of sequences that begin before the request.
    pub n_sequences: u64,
    /// Number of their prompt tokens.
    pub n_tokens: u64,
    /// Number of sequences that have their first token.
    pub n_running: u64,
    /// Expected output tokens of a sequence.
    pub mean_output: f64,
}

impl ServiceRate {
    /// Time until the first step of a request of `n_sequences`: places must become free for the sequences
    /// ahead and its own, and the prompts ahead are computed in steps that the running sequences share.
    pub(super) fn wait(&self, ahead: Ahead, n_sequences: u32) -> Nanos {
        let n_free = self.all_slots().saturating_sub(ahead.n_running);
        let n_more = (ahead.n_sequences + u64::from(n_sequences)).saturating_sub(n_free);
        // A full replica ends a sequence after each `mean_output / n_slots` steps.
        let places = n_more as f64 * ahead.mean_output * self.step_ns(self.slots()) / self.all_slots() as f64;
        let prompts = self.prefill(ahead, ahead.n_tokens / self.replicas());
        Nanos((places as u64).saturating_add(prompts.0))
    }

    /// Time of `n_tokens` of a prompt from its first step to its first token, beside the running work.
    pub(super) fn prefill(&self, ahead: Ahead, n_tokens: u64) -> Nanos {
        let n_beside = (ahead.n_running / self.replicas()).min(self.slots());
        self.step_time.prefill(n_tokens, n_beside as u32)
    }

    /// Time of `n_tokens` output tokens, beside the running work and the work ahead.
    pub(super) fn decode(&self, ahead: Ahead, n_tokens: f64) -> Nanos {
        let n_beside = (ahead.n_running + ahead.n_sequences) / self.replicas();
        Nanos((self.step_ns((n_beside + 1).min(self.slots())) * n_tokens) as u64)
    }

    /// Time of a whole request that runs alone.
    pub(super) fn alone(&self, n_prompt_tokens: u64, n_output: f64) -> Nanos {
        let nothing = Ahead::default();
        Nanos(self.prefill(nothing, n_prompt_tokens).0 + self.decode(nothing, n_output).0)
    }

    /// The time of a full replica that a request takes, in seconds.
    pub(super) fn work_s(&self, n_prompt_tokens: u64, n_output: f64) -> f64 {
        let output_ns = n_output * self.step_ns(self.slots()) / self.slots() as f64;
        self.prefill(Ahead::default(), n_prompt_tokens).as_secs_f64() + output_ns / 1e9
    }

    fn slots(&self) -> u64 {
        u64::from(self.n_slots.max(1))
    }

    fn replicas(&self) -> u64 {
        u64::from(self.n_replicas.max(1))
    }

    fn all_slots(&self) -> u64 {
        self.slots() * self.replicas()
    }

    fn step_ns(&self, n_sequences: u64) -> f64 {
        self.step_time.fixed.0 as f64 + self.step_time.per_sequence.0 as f64 * n_sequences as f64
    }
}
