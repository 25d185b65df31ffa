//! Constraints in the runner: masks hold, and what goes wrong with one sequence's constraint or adapter stays
//! with it.

use std::sync::Arc;

use crate::harness::{BACKENDS, LIMITS};
use throng_core::constraint::{ConstraintError, TokenConstraint, TokenMask};
use throng_core::request::{AdapterId, RequestId, SamplingParams, SequenceId, TokenId};
use throng_core::scheduling::batch::{BlockId, NewSequence, ScheduledBatch, SequenceError, StepOutput};
use throng_core::scheduling::executor::Executor;
use throng_kernels::quant::Format;
use throng_model::{LoadOptions, LoadedModel, RunnerOptions, load};
use throng_testkit::tiny_model::TinyModel;

fn tiny_model() -> LoadedModel {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    TinyModel::default().write_gguf(Format::F32, &path).unwrap();
    load(&path, &LoadOptions { prepare: None, n_threads: 1, quantize: None }, &mut |_| {}).unwrap()
}

/// What a constraint does when it is asked.
#[derive(Debug, Clone)]
enum Scripted {
    Allow(Vec<TokenId>),
    Fail,
    Panic,
}

impl TokenConstraint for Scripted {
    fn mask(&self, _output: &[TokenId], mask: &mut TokenMask) -> Result<(), ConstraintError> {
        match self {
            Self::Allow(tokens) => tokens.iter().for_each(|&token| mask.allow(token)),
            Self::Fail => return Err(ConstraintError::LimitExceeded),
            Self::Panic => panic!("a constraint's own fault"),
        }
        Ok(())
    }
}

type Row = (Option<Scripted>, Option<AdapterId>, SamplingParams);

/// One step of sequences with the same prompt, each in its own block, with two drafts each.
fn step(executor: &mut dyn Executor, sequences: &[Row], drafts: &[TokenId]) -> StepOutput {
    let (mut batch, mut output) = (ScheduledBatch::default(), StepOutput::default());
    for (i, (constraint, adapter, sampling)) in sequences.iter().enumerate() {
        batch.push(NewSequence {
            id: SequenceId { request: RequestId(i as u64), index: 0 },
            start: 0,
            n_prompt: 3,
            next_prompt_token: None,
            sample: true,
            sampling: Arc::new(sampling.clone()),
            constraint: constraint.clone().map(|constraint| Arc::new(constraint) as Arc<dyn TokenConstraint>),
            adapter: *adapter,
            tokens: &[1, 2, 3],
            drafts,
            blocks: &[BlockId(i as u32)],
            history: &[],
            output: &[],
        });
    }
    executor.execute(&batch, &mut output).unwrap();
    assert_eq!(output.n_sequences(), sequences.len());
    output
}

#[test]
fn a_fault_of_a_constraint_stays_with_its_sequence() {
    let model = tiny_model();
    let greedy = SamplingParams { temperature: 0.0, logprobs: Some(2), ..Default::default() };
    let no_end = SamplingParams { min_tokens: 1, eos_token_ids: vec![5], ..greedy.clone() };
    for backend in BACKENDS {
        let options = RunnerOptions { backend, n_threads: 2, limits: LIMITS };
        let mut runner = model.runner(&options).unwrap();
        for drafts in [&[][..], &[5, 5]] {
            let sequences =
                |constraint| vec![(constraint, None, greedy.clone()), (None, None, greedy.clone())];
            let free = step(&mut *runner, &sequences(None), drafts);
            let cases = [
                (Scripted::Fail, &greedy, SequenceError::Constraint(ConstraintError::LimitExceeded)),
                (Scripted::Panic, &greedy, SequenceError::Constraint(ConstraintError::Failed)),
                (Scripted::Allow(vec![]), &greedy, SequenceError::NothingAllowed),
                (Scripted::Allow(vec![5]), &no_end, SequenceError::NothingAllowed),
                (Scripted::Allow(vec![1000]), &greedy, SequenceError::NothingAllowed),
            ];
            for (constraint, sampling, expected) in cases {
                let mut sequences = sequences(Some(constraint));
                sequences[0].2 = sampling.clone();
                let output = step(&mut *runner, &sequences, drafts);
                assert_eq!((output.error(0), output.error(1)), (Some(expected), None), "{backend:?}");
                assert!(output.sampled(1).eq(free.sampled(1)), "{backend:?}");
            }
            let mut sequences = sequences(Some(Scripted::Allow((0..64).collect())));
            sequences[1].1 = Some(AdapterId(3));
            let output = step(&mut *runner, &sequences, drafts);
            assert_eq!((output.error(0), output.error(1)), (None, Some(SequenceError::UnknownAdapter)));
            assert!(output.sampled(0).eq(free.sampled(0)), "a mask that allows all changes nothing");
        }
    }
}

#[test]
fn a_mask_leaves_what_it_allows() {
    let model = tiny_model();
    for backend in BACKENDS {
        let options = RunnerOptions { backend, n_threads: 2, limits: LIMITS };
        let mut runner = model.runner(&options).unwrap();
        for seed in 0..50 {
            let sampling = SamplingParams { seed, temperature: 2.0, ..Default::default() };
            let scheduled = (Some(Scripted::Allow(vec![11, 40])), None, sampling);
            let output = step(&mut *runner, &[scheduled], &[11, 11]);
            let tokens: Vec<_> = output.sampled(0).map(|token| token.chosen.token).collect();
            assert!(tokens.iter().all(|token| [11, 40].contains(token)), "{tokens:?}");
            let n_expected = tokens.iter().position(|&token| token != 11).map_or(3, |i| i + 1);
            assert_eq!(tokens.len(), n_expected, "{tokens:?}");
        }
    }
}
