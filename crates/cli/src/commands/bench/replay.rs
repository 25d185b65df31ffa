//! Simulated drafts with a given acceptance probability: an executor in the place of a draft model that
//! replays the known output of each request and replaces tokens by wrong ones with the probability of a
//! rejection. Does not know the source of outputs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_core::request::{RequestId, TokenId};
use throng_core::scheduling::batch::{ScheduledBatch, SequenceError, StepOutput, TokenLogprob};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};

/// Complete outputs of requests, recorded in an earlier run.
#[derive(Debug, Clone, Default)]
pub struct KnownOutputs(Arc<Mutex<BTreeMap<RequestId, Vec<TokenId>>>>);

impl KnownOutputs {
    /// Records the output of a request.
    pub fn set(&self, request: RequestId, tokens: Vec<TokenId>) {
        self.lock().insert(request, tokens);
    }

    /// Removes all outputs.
    pub fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<RequestId, Vec<TokenId>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Proposes the known outputs as drafts, with mistakes.
pub struct Replay {
    outputs: KnownOutputs,
    /// Probability that a draft token is right.
    acceptance: f64,
    rng: fastrand::Rng,
    /// Draft model that also runs, so that its time counts.
    draft_model: Option<Box<dyn Executor>>,
    ignored: StepOutput,
}

impl Replay {
    /// Creates an executor that replaces the drafts of `draft_model`; the draft model still runs, if there
    /// is one.
    pub fn new(outputs: KnownOutputs, acceptance: f64, draft_model: Option<Box<dyn Executor>>) -> Self {
        let rng = fastrand::Rng::with_seed(1);
        Self { outputs, acceptance, rng, draft_model, ignored: StepOutput::default() }
    }
}

impl Executor for Replay {
    fn capacity(&self) -> ExecutorCapacity {
        let any = ExecutorCapacity {
            n_blocks: u32::MAX,
            max_batch_tokens: u32::MAX,
            max_batch_sequences: u32::MAX,
            max_sequence_tokens: u32::MAX,
            vocabulary_size: u32::MAX,
            n_state_slots: 0,
            max_steps_in_flight: 1,
            takes_whole_prompts: false,
            takes_media: false,
            keeps_media_whole: false,
            n_stages: 1,
        };
        self.draft_model.as_ref().map_or(any, |model| model.capacity())
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        if let Some(model) = &mut self.draft_model {
            model.execute(batch, &mut self.ignored)?;
        }
        output.clear();
        let outputs = self.outputs.lock();
        for scheduled in batch.sequences() {
            output.begin_sequence();
            let n_output = scheduled.start as usize + scheduled.n_tokens() - scheduled.n_prompt as usize;
            let right = outputs.get(&scheduled.id.request).and_then(|tokens| tokens.get(n_output)).copied();
            match right.filter(|_| scheduled.sample) {
                Some(right) => {
                    // Another token of the vocabulary, whatever its size: all ids are below the largest one plus one.
                    let wrong = if right > 0 { right - 1 } else { 1 };
                    let token = if self.rng.f64() < self.acceptance { right } else { wrong };
                    output.push_sampled(TokenLogprob { token, logprob: 0.0, rank: 0 }, &[]);
                }
                None if scheduled.sample => output.fail_sequence(SequenceError::NoToken),
                None => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use throng_core::request::SequenceId;
    use throng_core::scheduling::batch::{BlockId, NewSequence};

    use super::*;

    #[test]
    fn tokens_are_right_with_the_given_probability() {
        let (outputs, id) = (KnownOutputs::default(), RequestId(3));
        outputs.set(id, vec![5, 0, 7]);
        let mut replay = Replay::new(outputs, 0.8, None);
        let (mut batch, mut output, mut n_right) = (ScheduledBatch::default(), StepOutput::default(), 0);
        batch.push(NewSequence {
            id: SequenceId { request: id, index: 0 },
            start: 4,
            n_prompt: 4,
            next_prompt_token: None,
            sample: true,
            sampling: Arc::default(),
            constraint: None,
            adapter: None,
            tokens: &[5],
            drafts: &[],
            blocks: &[BlockId(0)],
            history: &[],
            output: &[],
        });
        for _ in 0..10_000 {
            replay.execute(&batch, &mut output).expect("it does not fail");
            n_right += output.sampled(0).filter(|token| token.chosen.token == 0).count();
        }
        assert!((7_800..8_200).contains(&n_right), "{n_right}");
        replay.outputs.clear();
        replay.execute(&batch, &mut output).expect("it does not fail");
        assert_eq!(output.error(0), Some(SequenceError::NoToken));
    }
}
