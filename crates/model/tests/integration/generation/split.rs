//! A model in two stages in one process: on two equal backends it has the bits of the whole model, and its
//! blocks leave and enter runners with the same split.

use std::sync::Arc;

use throng_core::request::SamplingParams;
use throng_core::scheduling::batch::BlockId;
use throng_core::scheduling::block_exchange::BlockExchangeError;
use throng_core::scheduling::executor::Executor;
use throng_kernels::quant::Format;
use throng_model::config::Stage;
use throng_model::cpu_backend::CpuBackend;
use throng_model::load::load_bytes;
use throng_model::reference_backend::ReferenceBackend;
use throng_model::runner::{SplitRunner, StageOn};
use throng_model::{LoadOptions, LoadedModel, load};
use throng_testkit::golden::{fixtures, largest_distance, log_probabilities};
use throng_testkit::tiny_model::TinyModel;

use super::super::families::golden::tolerance;
use crate::harness::{Expected, LIMITS, OneSequence};

const OPTIONS: LoadOptions = LoadOptions { prepare: None, n_threads: 1, quantize: None };

/// A runner on two processors with the layers from `first_layer` on in the second stage; `None` if the model
/// cannot be divided there.
fn split(model: &LoadedModel, first_layer: usize) -> Option<SplitRunner<CpuBackend, CpuBackend>> {
    let stages = Stage::halves(&model.config, first_layer).ok()?;
    let [first, second] = stages.map(|stage| {
        let backend = CpuBackend::new(1);
        let weights = model.stage_on(&backend, &stage, &mut |_| {}).unwrap();
        StageOn { backend, weights, adapters: Arc::default() }
    });
    Some(SplitRunner::new(first, second, &model.config, &LIMITS).unwrap())
}

#[test]
fn two_stages_have_the_bits_of_the_whole_model() {
    let mut n_divided = 0;
    for folder in fixtures() {
        let (model, expected) = (load(&folder, &OPTIONS, &mut |_| {}).unwrap(), Expected::read(&folder));
        for first_layer in 1..model.config.layers.len() {
            let Some(mut divided) = split(&model, first_layer) else { continue };
            let mut whole = model.runner_with(CpuBackend::new(1), &LIMITS).unwrap();
            let vocabulary = model.config.vocabulary_size;
            let logprobs =
                |runner: &mut dyn Executor| log_probabilities(runner, vocabulary, &expected.input_ids, 7);
            let found = logprobs(&mut divided);
            assert!(found == logprobs(&mut whole), "{} from layer {first_layer} on", model.name);
            n_divided += 1;
        }
    }
    assert!(n_divided > 40, "only {n_divided} models were divided");
}

#[test]
fn stages_on_different_backends_are_the_model() {
    let folder = &fixtures()[0];
    let (model, expected) = (load(folder, &OPTIONS, &mut |_| {}).unwrap(), Expected::read(folder));
    let [first, second] = Stage::halves(&model.config, 1).unwrap();
    let weights = model.stage_on(&CpuBackend::new(1), &first, &mut |_| {}).unwrap();
    let first = StageOn { backend: CpuBackend::new(1), weights, adapters: Arc::default() };
    let weights = model.stage_on(&ReferenceBackend, &second, &mut |_| {}).unwrap();
    let second = StageOn { backend: ReferenceBackend, weights, adapters: Arc::default() };
    let mut runner = SplitRunner::new(first, second, &model.config, &LIMITS).unwrap();
    let vocabulary = model.config.vocabulary_size;
    let found = log_probabilities(&mut runner, vocabulary, &expected.input_ids, 48);
    let worst = largest_distance(&found, &expected, vocabulary);
    assert!(worst < tolerance(&model, throng_model::BackendKind::Cpu), "off by {worst:.2e}");
}

#[test]
fn blocks_of_two_stages_enter_another_runner_of_the_same_split() {
    let file = TinyModel { n_layers: 3, ..TinyModel::default() }.gguf(Format::F32);
    let model = load_bytes("tiny", &file, &OPTIONS, &mut |_| {}).unwrap();
    let make = || split(&model, 1).unwrap().with_fingerprint("tiny".into());
    let (mut from, mut to) = (make(), make());
    let prompt: Vec<u32> = (0..45).map(|i| (i * 7 + 3) % 64).collect();
    let greedy = Arc::new(SamplingParams { temperature: 0.0, ..SamplingParams::default() });
    let sequence = |runner: &mut dyn Executor| {
        let mut sequence = OneSequence::new(&prompt, Arc::clone(&greedy));
        sequence.prefill(runner, 20, |_| {});
        sequence
    };
    let (mut alone, mut moved) = (sequence(&mut from), sequence(&mut from));
    let blocks: Vec<BlockId> = (0..LIMITS.n_blocks).map(BlockId).collect();
    let exported = from.export_blocks(&blocks).unwrap();
    to.import_blocks(&exported, &blocks).unwrap();
    assert_eq!(to.export_blocks(&blocks).unwrap(), exported);
    alone.decode(&mut from, 20);
    moved.decode(&mut to, 20);
    assert_eq!(moved.output(), alone.output());
    let mut short = exported.clone();
    short.bytes.pop();
    assert!(matches!(to.import_blocks(&short, &blocks), Err(BlockExchangeError::WrongSize { .. })));
}
