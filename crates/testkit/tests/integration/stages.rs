//! A decoder in stages: chained, they give the bits of the whole decoder, and each holds only the weights,
//! keys and states of its own layers.

use std::path::Path;
use std::sync::Arc;

use throng_core::request::{RequestId, SamplingParams, SequenceId, TokenId};
use throng_core::scheduling::batch::{BlockId, MemorySlot, NewSequence, ScheduledBatch, StateShare};
use throng_kernels::quant::Format;
use throng_model::adapter::StepAdapters;
use throng_model::backend::Backend;
use throng_model::batch_input::BatchInput;
use throng_model::config::{Stage, StageError};
use throng_model::cpu_backend::CpuBackend;
use throng_model::decoder::weights::TensorError;
use throng_model::decoder::{Decoder, DecoderLimits};
use throng_model::kv_cache::KvDtype;
use throng_model::load::{LoadError, load_bytes};
use throng_model::{LoadOptions, LoadedModel, load};
use throng_testkit::example_backend::ExampleBackend;
use throng_testkit::tiny_model::TinyModel;

const OPTIONS: LoadOptions = LoadOptions { prepare: None, n_threads: 1, quantize: None };

const LIMITS: DecoderLimits = DecoderLimits {
    max_tokens: 16,
    max_logit_rows: 1,
    max_sequence_tokens: 64,
    n_positions: 64,
    n_state_slots: 2,
};

/// A stage with its device and its part of the cache.
struct Device<B: Backend> {
    backend: B,
    decoder: Decoder<B>,
    cache: B::KvCache,
    stage: Stage,
}

impl<B: Backend> Device<B> {
    fn new(model: &LoadedModel, backend: B, stage: &Stage) -> Result<Self, LoadError> {
        let weights = model.stage_on(&backend, stage, &mut |_| {})?;
        let decoder = Decoder::new(&backend, Arc::clone(&model.config), weights, &LIMITS)?;
        let cache = backend.kv_cache(&model.kv_layout(KvDtype::F32, 4).of_layers(&stage.layers))?;
        Ok(Self { backend, decoder, cache, stage: stage.clone() })
    }
}

/// The inputs of a prompt in two chunks, then of three tokens.
fn inputs(model: &LoadedModel) -> Vec<BatchInput> {
    let tokens: Vec<TokenId> =
        (0..24).map(|i| (i * 7 + 3) % model.config.vocabulary_size as TokenId).collect();
    let input = |(start, end): (usize, usize)| {
        let mut batch = ScheduledBatch::default();
        batch.push(NewSequence {
            id: SequenceId { request: RequestId(1), index: 0 },
            start: start as u32,
            n_prompt: 21,
            next_prompt_token: None,
            sample: true,
            sampling: Arc::new(SamplingParams::default()),
            constraint: None,
            adapter: None,
            tokens: &tokens[start..end],
            drafts: &[],
            blocks: &[2, 0].map(BlockId),
            history: &[],
            output: &[],
        });
        if model.config.is_recurrent() {
            let from = (start > 0).then_some(MemorySlot(1));
            batch.set_state(StateShare { from, to: MemorySlot(1), saves: [None; 2] });
        }
        let mut input = BatchInput::default();
        input.fill(&batch, |_, token_idx| token_idx + 1 == end - start);
        input
    };
    [(0, 13), (13, 21), (21, 22), (22, 23), (23, 24)].map(input).to_vec()
}

/// The bits of the logits of all steps, through these stages one after the other.
fn run<B: Backend>(
    model: &LoadedModel,
    backend: fn() -> B,
    stages: &[Stage],
) -> Result<Vec<Vec<u32>>, LoadError> {
    let devices = stages.iter().map(|stage| Device::new(model, backend(), stage));
    let mut devices: Vec<Device<B>> = devices.collect::<Result<_, _>>()?;
    let (adapters, mut all) = (StepAdapters::default(), Vec::new());
    for input in inputs(model) {
        let mut residual: Vec<f32> = Vec::new();
        for Device { backend, decoder, cache, stage } in &mut devices {
            match stage.embeds {
                true => decoder.forward(backend, cache, &input),
                false => decoder.forward_from(backend, cache, &input, &residual, &adapters),
            }
            if stage.has_head {
                let logits = decoder.logits(backend, 0..1);
                all.push(backend.download(logits)?.iter().map(|logit| logit.to_bits()).collect());
            } else {
                residual = decoder.residual(backend)?.to_vec();
            }
        }
    }
    Ok(all)
}

/// Compares pipelines of two and of three stages with the whole.
fn compare<B: Backend>(model: &LoadedModel, backend: fn() -> B) -> Result<(), LoadError> {
    let whole = run(model, backend, &[Stage::whole(&model.config)])?;
    assert!(whole.len() == 5 && whole[3] != whole[4], "{}", model.name);
    let n_layers = model.config.layers.len();
    let at = |embeds, layers, has_head| Stage { embeds, layers, has_head };
    // The ends may be stages of their own.
    let alone =
        vec![at(true, 0..0, false), at(false, 0..n_layers, false), at(false, n_layers..n_layers, true)];
    let split = Stage::split(&model.config, 2).map_err(|error| LoadError::Tensors(error.into()))?;
    for stages in [split, alone] {
        assert!(run(model, backend, &stages)? == whole, "{}: {stages:?}", model.name);
    }
    Ok(())
}

fn fixtures() -> impl Iterator<Item = LoadedModel> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures");
    let folders = std::fs::read_dir(root).expect("the fixtures are there").map(|entry| entry.unwrap().path());
    let folders = folders.filter(|path| path.join("expected.safetensors").exists());
    folders.map(|folder| load(&folder, &OPTIONS, &mut |_| {}).expect("a golden model loads"))
}

#[test]
fn chained_stages_give_the_bits_of_the_whole_decoder() {
    let (mut n_divided, mut whole_only) = (0, Vec::new());
    for model in fixtures() {
        match compare(&model, ExampleBackend::default) {
            Ok(()) => n_divided += 1,
            // Keys of indexers are behind those of all layers.
            Err(LoadError::Tensors(TensorError::Stage(StageError::ChosenPositions { .. }))) => {}
            Err(LoadError::Tensors(TensorError::Stage(_))) => whole_only.push(model.config.family),
            Err(error) => panic!("{}: {error}", model.name),
        }
    }
    assert!(n_divided >= 25, "{n_divided} models were divided");
    assert!(
        whole_only.iter().all(|&family| family.starts_with("gemma4")),
        "{whole_only:?} cannot be divided"
    );
}

#[test]
fn stages_of_the_processor_give_the_bits_of_the_whole_decoder() {
    let tiny = TinyModel { n_layers: 3, ..TinyModel::default() };
    let model = load_bytes("tiny", &tiny.gguf(Format::Q4_0), &OPTIONS, &mut |_| {}).expect("it loads");
    compare(&model, || CpuBackend::new(1)).expect("it can be divided");
    let thirds = Stage::split(&model.config, 3).expect("it has three layers");
    assert_eq!(thirds.iter().map(|stage| stage.layers.clone()).collect::<Vec<_>>(), [0..1, 1..2, 2..3]);
    let whole = run(&model, || CpuBackend::new(1), &[Stage::whole(&model.config)]).expect("it fits");
    assert!(run(&model, || CpuBackend::new(1), &thirds).expect("it fits") == whole);
}

#[test]
fn a_stage_that_a_model_has_not_is_refused() {
    let model = load_bytes("tiny", &TinyModel::default().gguf(Format::F32), &OPTIONS, &mut |_| {}).unwrap();
    let n_stages = Stage::split(&model.config, 2).expect_err("it has one layer");
    assert_eq!(n_stages, StageError::Stages { n_stages: 2, n_layers: 1 });
    let beyond = Stage { embeds: true, layers: 0..2, has_head: true };
    assert_eq!(beyond.check(&model.config), Err(StageError::Layers { layers: 0..2, n_layers: 1 }));
    let refused = model.stage_on(&ExampleBackend::default(), &beyond, &mut |_| {});
    assert!(matches!(refused, Err(LoadError::Tensors(_))));

    let mut config = (*model.config).clone();
    config.layers.push(config.layers[0]);
    config.layers[1].attention_mut().expect("it has attention").kv_layer_idx = Some(0);
    assert_eq!(Stage::whole(&config).check(&config), Ok(()));
    let shared = StageError::SharedKeys { layer_idx: 1, kv_layer_idx: 0 };
    assert_eq!(Stage::split(&config, 2), Err(shared));
}
