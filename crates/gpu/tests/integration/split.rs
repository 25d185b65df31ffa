//! A model whose last layers are on the device and whose first ones are on the processor.

use std::num::NonZeroUsize;
use std::sync::Arc;

use throng_core::scheduling::executor::{Executor, ExecutorError};
use throng_gpu::{Device, GpuBackend, GpuLayers, GpuModel};
use throng_kernels::quant::Format;
use throng_kernels::threads::ThreadPool;
use throng_model::adapter::{AdapterLimits, RandomAdapter};
use throng_model::backend::{Backend, BackendError};
use throng_model::config::{FeedForward, LayerConfig, Stage};
use throng_model::cpu_backend::CpuBackend;
use throng_model::kv_cache::KvDtype;
use throng_model::load::{LoadError, load_bytes};
use throng_model::runner::{SplitRunner, StageOn};
use throng_model::tensor_role::TensorRole;
use throng_model::{LoadOptions, LoadedModel, load};
use throng_testkit::golden::{Expected, fixtures, greedy, largest_distance, log_probabilities};
use throng_testkit::invisibility::{self, N_ADAPTERS, Seen, check, check_model};
use throng_testkit::nightly::amount;
use throng_testkit::one_sequence::{LIMITS, OneSequence};
use throng_testkit::tiny_model::TinyModel;

use crate::failures::tokens;
use crate::harness::{adapter, backend, fast_device};

const OPTIONS: LoadOptions = LoadOptions { prepare: None, n_threads: 1, quantize: None };

/// Tolerance of the processor: activations that are multiplied with MXFP4 are rounded there.
const TOLERANCE: f64 = 2e-4;
const TOLERANCE_OF_MXFP4: f64 = 6e-4;

fn stage_on<B: Backend>(model: &LoadedModel, stage: &Stage, backend: B) -> StageOn<B> {
    let weights = model.stage_on(&backend, stage, &mut |_| {}).expect("the stage loads");
    StageOn { backend, weights, adapters: Arc::default() }
}

/// A runner with the layers from `first_layer` on on the device; `None` if the model cannot be divided there.
fn split(
    model: &LoadedModel,
    first_layer: usize,
    device: &Arc<Device>,
) -> Option<SplitRunner<CpuBackend, GpuBackend>> {
    let [first, second] = Stage::halves(&model.config, first_layer).ok()?;
    let (first, second) =
        (stage_on(model, &first, CpuBackend::new(1)), stage_on(model, &second, backend(device)));
    Some(SplitRunner::new(first, second, &model.config, &LIMITS).expect("the family runs"))
}

fn tiny(n_layers: usize, format: Format) -> LoadedModel {
    let shape = TinyModel { n_layers, n_heads: 4, hidden: 128, feed_forward: 128, ..Default::default() };
    load_bytes("tiny", &shape.gguf(format), &OPTIONS, &mut |_| {}).expect("the tiny model loads")
}

#[test]
fn divided_families_are_those_of_transformers() {
    let Some(device) = fast_device() else { return };
    let mut n_divided = 0;
    for folder in fixtures().into_iter().step_by(amount(3, 1)) {
        let model = load(&folder, &OPTIONS, &mut |_| {}).expect("the fixture opens");
        let Some(mut runner) = split(&model, model.config.layers.len() / 2, &device) else { continue };
        let (expected, vocabulary) = (Expected::read(&folder), model.config.vocabulary_size);
        let found = log_probabilities(&mut runner, vocabulary, &expected.input_ids, 13);
        let worst = largest_distance(&found, &expected, vocabulary);
        println!("{}: off by {worst:.2e}", model.name);
        let tolerance = if model.name.ends_with("mxfp4") { TOLERANCE_OF_MXFP4 } else { TOLERANCE };
        assert!(worst < tolerance, "{}: off by {worst:.2e}", model.name);
        assert_eq!(greedy(&mut runner, &expected, 48), expected.greedy, "{}", model.name);
        n_divided += 1;
    }
    assert!(n_divided >= 10, "only {n_divided} models were divided");
}

#[test]
fn two_stages_on_the_device_have_the_bits_of_the_whole_model() {
    let Some(device) = fast_device() else { return };
    let model = tiny(3, Format::Q8_0);
    let [first, second] = Stage::halves(&model.config, 1).expect("three layers");
    let [first, second] = [first, second].map(|stage| stage_on(&model, &stage, backend(&device)));
    let mut divided = SplitRunner::new(first, second, &model.config, &LIMITS).expect("it fits");
    let mut whole = model.runner_with(backend(&device), &LIMITS).expect("it fits");
    let prompt: Vec<u32> = (0..50).map(|i| (i * 11 + 5) % 64).collect();
    let logprobs = |runner: &mut dyn Executor| log_probabilities(runner, 64, &prompt, 9);
    let found = logprobs(&mut divided);
    assert!(found == logprobs(&mut whole), "other bits");
}

#[test]
fn results_of_a_divided_model_do_not_depend_on_the_batch() {
    let Some(_) = adapter() else { return };
    let mut seen = Seen::default();
    for (format, first_seed) in [(Format::F32, 2000), (Format::Q4_K, 3000)] {
        let seeds = first_seed..first_seed + amount(2, 20);
        let shape = TinyModel { n_layers: 2, ..Default::default() };
        let model = load_bytes("tiny", &shape.gguf(format), &OPTIONS, &mut |_| {}).expect("it loads");
        let layers = GpuLayers::Last(NonZeroUsize::MIN);
        let gpu =
            GpuModel::open(0, false, Arc::new(ThreadPool::new(2))).expect("it opens").with_layers(layers);
        gpu.prepare(&model, &mut |_| {}).expect("it fits");
        assert_eq!(gpu.first_layer(), 1);
        let load = |seed| {
            let random = RandomAdapter { rank: 3 + 5 * seed as usize, seed };
            gpu.load_random_adapter(&model, random, AdapterLimits::default()).expect("an adapter loads")
        };
        let held: Vec<_> = (0..N_ADAPTERS as u64).map(load).collect();
        assert!(held.iter().zip(0..).all(|(adapter, number)| adapter.id.0 == number));
        let runner = |_| gpu.executor(&model, &invisibility::LIMITS).expect("it fits");
        check(&format!("a divided model in {}", format.name()), runner, seeds, 12, &mut seen);
    }
    println!("{seen:?}");
}

#[test]
fn a_model_that_does_not_fit_is_divided() {
    let Some(_) = adapter() else { return };
    let model = tiny(4, Format::Q8_0);
    let bytes = model.layer_bytes();
    let open = |layers| {
        let gpu = GpuModel::open(0, true, Arc::new(ThreadPool::new(1))).expect("the device opens");
        gpu.with_layers(layers)
    };
    // Room for the head and two layers, at the share of the memory that weights may take.
    let room = (bytes[5] + bytes[4] + bytes[3]) * 5 / 4 + 8;
    let gpu = open(GpuLayers::Fit).with_memory(room);
    let mut executor = gpu.executor(&model, &LIMITS).expect("a divided model");
    let expected = tokens(&mut *executor);
    assert_eq!(gpu.first_layer(), 2);
    // The same division by number, with the same tokens; and with them after the device was lost.
    let by_number = open(GpuLayers::Last(NonZeroUsize::new(2).expect("two")));
    assert_eq!(tokens(&mut *by_number.executor(&model, &LIMITS).expect("it fits")), expected);
    gpu.device().lose();
    let mut sequence = OneSequence::new(&[1, 2, 3], Arc::default());
    let failed = executor.execute(sequence.next_batch(&*executor), &mut Default::default());
    assert!(matches!(failed, Err(ExecutorError::Device(_))), "{failed:?}");
    drop(executor);
    assert_eq!(tokens(&mut *gpu.executor(&model, &LIMITS).expect("another device")), expected);
    assert_eq!(gpu.first_layer(), 2);
    let whole = open(GpuLayers::Fit);
    whole.prepare(&model, &mut |_| {}).expect("it fits");
    assert_eq!(whole.first_layer(), 0);
    let refused = open(GpuLayers::Fit).with_memory(bytes[5] / 2).prepare(&model, &mut |_| {});
    let refused = refused.expect_err("no layer fits").to_string();
    assert!(refused.contains("the last layer and the head"), "{refused}");
}

#[test]
fn layers_that_do_not_fit_after_all_go_to_the_processor() {
    let Some(_) = adapter() else { return };
    let model = tiny(4, Format::Q8_0);
    let open = || GpuModel::open(0, true, Arc::new(ThreadPool::new(1))).expect("the device opens");
    let whole = open();
    whole.prepare(&model, &mut |_| {}).expect("it fits");
    let used = whole.device().used_bytes();
    assert_eq!(whole.first_layer(), 0);
    let gpu = open();
    gpu.device().refuse_memory_beyond(used - model.layer_bytes()[1]);
    gpu.prepare(&model, &mut |_| {}).expect("fewer layers fit");
    let first_layer = gpu.first_layer();
    assert!((1..4).contains(&first_layer), "{first_layer}");
    // Layers that were requested do not give way.
    let all = open().with_layers(GpuLayers::All);
    all.device().refuse_memory_beyond(used - model.layer_bytes()[1]);
    let refused = all.prepare(&model, &mut |_| {});
    assert!(matches!(refused, Err(LoadError::Backend(_) | LoadError::Tensors(_))), "{refused:?}");
}

#[test]
fn experts_on_the_processor_are_those_of_transformers_and_do_not_depend_on_the_batch() {
    let Some(device) = fast_device() else { return };
    let threads = Arc::new(ThreadPool::new(1));
    let mut n_families = 0;
    for folder in fixtures() {
        let model = load(&folder, &OPTIONS, &mut |_| {}).expect("the fixture opens");
        let has_experts = |layer: &LayerConfig| matches!(layer.feed_forward, FeedForward::Experts { .. });
        if !model.config.layers.iter().any(has_experts) {
            continue;
        }
        let on_host = backend(&device).with_host_experts(&threads);
        let mut runner = model.runner_with(on_host, &LIMITS).expect("the family runs");
        let (expected, vocabulary) = (Expected::read(&folder), model.config.vocabulary_size);
        let found = log_probabilities(&mut runner, vocabulary, &expected.input_ids, 48);
        let worst = largest_distance(&found, &expected, vocabulary);
        println!("{}: off by {worst:.2e}", model.name);
        let tolerance = if model.name.ends_with("mxfp4") { TOLERANCE_OF_MXFP4 } else { TOLERANCE };
        assert!(worst < tolerance, "{}: off by {worst:.2e}", model.name);
        n_families += 1;
    }
    assert!(n_families >= 5, "only {n_families} models have experts");
    let shape = TinyModel {
        architecture: "qwen3moe",
        experts: (8, 2),
        hidden: 64,
        n_heads: 2,
        n_kv_heads: 1,
        feed_forward: 64,
        ..Default::default()
    };
    let make = |n| backend(&device).with_host_experts(&Arc::new(ThreadPool::new(n)));
    let seeds = 4000..4000 + amount(2, 20);
    let formats = (&shape, Format::Q8_0, KvDtype::F16);
    check_model("experts on the processor", make, formats, seeds, 24, &mut Seen::default());
}

#[test]
fn experts_on_the_processor_take_no_memory_of_the_device() {
    let Some(_) = adapter() else { return };
    let shape = TinyModel { architecture: "qwen3moe", experts: (8, 2), n_layers: 3, ..Default::default() };
    let model = load_bytes("tiny", &shape.gguf(Format::Q8_0), &OPTIONS, &mut |_| {}).expect("it loads");
    let without = model.layer_bytes_of(|role| role != TensorRole::Expert);
    let (dense, all) = (without.iter().sum::<u64>(), model.layer_bytes().iter().sum::<u64>());
    assert!(dense * 2 < all, "most bytes are those of experts");
    let open = || GpuModel::open(0, true, Arc::new(ThreadPool::new(1))).expect("it opens");
    let whole = open();
    let expected = tokens(&mut *whole.executor(&model, &LIMITS).expect("it fits"));
    let room = (dense + model.weight_summary().n_bytes - all) * 5 / 4;
    let gpu = open().with_host_experts().with_memory(room);
    let found = tokens(&mut *gpu.executor(&model, &LIMITS).expect("it fits"));
    assert_eq!((gpu.first_layer(), found.len()), (0, expected.len()));
    assert!(gpu.device().used_bytes() < whole.device().used_bytes() - (all - dense) / 2);
    let refused = open().with_memory(room).prepare(&model, &mut |_| {});
    let is_full = matches!(refused, Err(LoadError::Backend(BackendError::OutOfMemory { .. })));
    assert!(is_full, "with its experts not even a layer fits: {refused:?}");
}
