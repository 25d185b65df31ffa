//! One sequence that runs through an executor without a scheduler. Does not know the executor.

use std::sync::Arc;

use throng_core::request::{AdapterId, RequestId, SamplingParams, SequenceId};
use throng_core::scheduling::batch::{
    BLOCK_TOKENS, BlockId, ChosenToken, MemorySlot, NewSequence, ScheduledBatch, StateShare, StepOutput,
};
use throng_core::scheduling::executor::{Executor, ExecutorError};
use throng_model::kv_cache::KvDtype;
use throng_model::runner::RunnerLimits;

/// KV cache for one short sequence.
pub const LIMITS: RunnerLimits = RunnerLimits {
    n_blocks: 16,
    kv_dtype: KvDtype::F32,
    max_batch_tokens: 128,
    max_batch_sequences: 4,
    max_sequence_tokens: None,
};

/// The only sequence of an executor. Its blocks are scattered, so that errors in reading the block table are
/// found.
pub struct OneSequence {
    tokens: Vec<u32>,
    n_prompt: usize,
    n_computed: usize,
    sampling: Arc<SamplingParams>,
    adapter: Option<AdapterId>,
    batch: ScheduledBatch,
    step: StepOutput,
    n_steps: u32,
}

impl OneSequence {
    /// A sequence with this prompt, without computed tokens.
    pub fn new(prompt: &[u32], sampling: Arc<SamplingParams>) -> Self {
        let (batch, step) = Default::default();
        let (tokens, n_prompt) = (prompt.to_vec(), prompt.len());
        Self { tokens, n_prompt, n_computed: 0, sampling, adapter: None, batch, step, n_steps: 0 }
    }

    /// Runs the sequence with an adapter.
    pub fn with_adapter(self, adapter: AdapterId) -> Self {
        Self { adapter: Some(adapter), ..self }
    }

    /// Computes the prompt in chunks; `each` gets the reports of all its positions, the first output's last.
    pub fn prefill(
        &mut self,
        executor: &mut dyn Executor,
        chunk: usize,
        mut each: impl FnMut(ChosenToken<'_>),
    ) {
        while self.n_computed < self.n_prompt {
            self.step(executor, chunk.min(self.n_prompt - self.n_computed));
            self.step.prompt(0).for_each(&mut each);
            self.step.sampled(0).for_each(&mut each);
        }
    }

    /// Computes output tokens one by one.
    pub fn decode(&mut self, executor: &mut dyn Executor, n_tokens: usize) {
        for _ in 0..n_tokens {
            self.step(executor, 1);
        }
    }

    /// The output tokens so far.
    pub fn output(&self) -> &[u32] {
        &self.tokens[self.n_prompt..]
    }

    /// Computes the first tokens without reports.
    pub fn compute_only(&mut self, executor: &mut dyn Executor, n_tokens: usize) {
        self.step(executor, n_tokens);
    }

    /// The batch of a whole prompt, which is not computed.
    pub fn next_batch(&mut self, executor: &dyn Executor) -> &ScheduledBatch {
        self.fill_batch(executor, self.n_prompt);
        &self.batch
    }

    /// Fills the batch with the next tokens.
    fn fill_batch(&mut self, executor: &dyn Executor, n_new: usize) {
        let end = self.n_computed + n_new;
        let n_blocks = executor.capacity().n_blocks as usize;
        let blocks: Vec<_> =
            (0..end.div_ceil(BLOCK_TOKENS)).map(|i| BlockId(((i * 7 + 3) % n_blocks) as u32)).collect();
        self.batch.clear();
        self.batch.push(NewSequence {
            id: SequenceId { request: RequestId(1), index: 0 },
            start: self.n_computed as u32,
            n_prompt: self.n_prompt as u32,
            next_prompt_token: self.tokens.get(end).copied(),
            sample: end >= self.n_prompt,
            sampling: Arc::clone(&self.sampling),
            constraint: None,
            adapter: self.adapter,
            tokens: &self.tokens[self.n_computed..end],
            drafts: &[],
            blocks: &blocks,
            history: &[],
            output: &[],
        });
        if executor.capacity().n_state_slots > 0 {
            // The state goes back and forth between two slots.
            let (from, to) = (MemorySlot(self.n_steps % 2), MemorySlot((self.n_steps + 1) % 2));
            let from = (self.n_computed > 0).then_some(from);
            self.batch.set_state(StateShare { from, to, saves: [None; 2] });
            self.n_steps += 1;
        }
    }

    fn step(&mut self, executor: &mut dyn Executor, n_new: usize) {
        self.try_step(executor, n_new).expect("the step succeeds");
    }

    /// Computes the next tokens.
    ///
    /// # Errors
    /// When the step fails as a whole.
    ///
    /// # Panics
    /// When the sequence alone fails.
    pub fn try_step(&mut self, executor: &mut dyn Executor, n_new: usize) -> Result<(), ExecutorError> {
        let end = self.n_computed + n_new;
        self.fill_batch(executor, n_new);
        executor.execute(&self.batch, &mut self.step)?;
        assert_eq!(self.step.error(0), None);
        self.n_computed = end;
        self.tokens.extend(self.step.sampled(0).map(|report| report.chosen.token));
        Ok(())
    }
}

/// Sampling of one of four kinds, by index: greedy, among the likeliest tokens, with penalties, and hot.
pub fn with_kind(i: usize, plain: SamplingParams) -> SamplingParams {
    match i % 4 {
        0 => SamplingParams { temperature: 0.0, ..plain },
        1 => SamplingParams { temperature: 0.8, top_k: 20, top_p: 0.9, ..plain },
        2 => SamplingParams {
            repetition_penalty: 1.3,
            presence_penalty: 0.5,
            frequency_penalty: 0.2,
            bad_words: vec![vec![3, 4], vec![9]],
            ..plain
        },
        _ => SamplingParams { temperature: 1.5, min_p: 0.02, ..plain },
    }
}
