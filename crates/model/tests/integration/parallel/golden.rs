//! Every family over several ranks against transformers: log-probabilities and greedy tokens.

use std::sync::Arc;

use super::{GRIDS, leader, open_folder};
use crate::families::golden::tolerance;
use crate::harness::{Expected, LIMITS, OneSequence};
use throng_core::request::SamplingParams;
use throng_core::scheduling::executor::Executor;
use throng_model::BackendKind;
use throng_model::load::LoadError;
use throng_model::parallel::PartError;
use throng_testkit::golden::{fixtures, log_softmax};

/// The largest difference from the expected log-probabilities.
fn worst_difference(executor: &mut dyn Executor, expected: &Expected, chunk: usize) -> f64 {
    let vocabulary = executor.capacity().vocabulary_size;
    let sampling = SamplingParams {
        temperature: 0.0,
        logprobs: Some(vocabulary),
        prompt_logprobs: Some(vocabulary),
        ..Default::default()
    };
    let mut sequence = OneSequence::new(&expected.input_ids, Arc::new(sampling));
    let mut rows = expected.logits.chunks_exact(vocabulary as usize).map(log_softmax);
    let mut worst = 0.0_f64;
    sequence.prefill(executor, chunk, |report| {
        let expected = rows.next().expect("a row for each position");
        for top in report.top {
            worst = worst.max((f64::from(top.logprob) - expected[top.token as usize]).abs());
        }
    });
    assert!(rows.next().is_none(), "every position is reported");
    worst
}

#[test]
fn parts_together_are_the_model_of_transformers() {
    let (mut n_run, mut refused) = (0, Vec::new());
    for folder in fixtures() {
        let (open, expected) = (|| open_folder(&folder), Expected::read(&folder));
        let name = open().name;
        for grid in GRIDS {
            let mut executor = match leader(&open, grid, 1, LIMITS) {
                Ok(executor) => executor,
                Err(LoadError::Part(error)) => {
                    refused.push((name.clone(), grid, error));
                    continue;
                }
                Err(error) => panic!("{name} over {grid:?}: {error}"),
            };
            let worst = worst_difference(&mut executor, &expected, 7);
            println!("{name} over {grid:?}: off by {worst:.2e}");
            assert!(worst < tolerance(&open(), BackendKind::Cpu), "{name} over {grid:?}: {worst:.2e}");
            let sampling = SamplingParams { temperature: 0.0, ignore_eos: true, ..Default::default() };
            let mut sequence = OneSequence::new(&expected.input_ids, Arc::new(sampling));
            sequence.prefill(&mut executor, 48, |_| {});
            sequence.decode(&mut executor, expected.greedy.len() - 1);
            assert_eq!(sequence.output(), expected.greedy, "{name} over {grid:?}");
            n_run += 1;
        }
    }
    for (name, grid, error) in &refused {
        println!("{name} over {grid:?}: {error}");
        let is_known = match error {
            PartError::Stage(_) => grid.n_stages > 1,
            PartError::Shard(_) => grid.n_ranks > 1,
            PartError::Pooling => true,
        };
        assert!(is_known, "{name} over {grid:?}: {error}");
    }
    assert!(n_run > 150, "{n_run} were run, {} refused", refused.len());
}
