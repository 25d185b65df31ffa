//! Blocks that leave a runner and enter another one: equal bits after a round trip, equal tokens after them,
//! and a refusal of blocks that mean something else.

use std::sync::Arc;

use throng_core::request::SamplingParams;
use throng_core::scheduling::batch::{
    BlockId, BlockLocation, BlockMove, MemorySlot, ScheduledBatch, StepOutput, Tier,
};
use throng_core::scheduling::block_exchange::{BlockExchangeError, ExportedBlocks};
use throng_core::scheduling::executor::{Executor, ExecutorError};
use throng_kernels::quant::Format;
use throng_model::cpu_backend::CpuBackend;
use throng_model::drafting::DraftingExecutor;
use throng_model::kv_cache::KvDtype;
use throng_model::load::load_bytes;
use throng_model::runner::{ModelRunner, RunnerLimits};
use throng_model::{LoadOptions, LoadedModel};
use throng_testkit::example_backend::ExampleBackend;
use throng_testkit::tiny_model::TinyModel;

use crate::harness::{LIMITS, OneSequence};

fn tiny() -> LoadedModel {
    let file = TinyModel { n_layers: 2, ..TinyModel::default() }.gguf(Format::F32);
    let options = LoadOptions { prepare: None, n_threads: 1, quantize: None };
    load_bytes("tiny", &file, &options, &mut |_| {}).unwrap()
}

fn runner(model: &LoadedModel, kv_dtype: KvDtype, fingerprint: &str) -> ModelRunner<CpuBackend> {
    let limits = RunnerLimits { kv_dtype, ..LIMITS };
    model.runner_with(CpuBackend::new(1), &limits).unwrap().with_fingerprint(fingerprint.into())
}

fn all_blocks(executor: &dyn Executor) -> Vec<BlockId> {
    (0..executor.capacity().n_blocks).map(BlockId).collect()
}

fn export(executor: &mut dyn Executor) -> ExportedBlocks {
    let blocks = all_blocks(executor);
    executor.export_blocks(&blocks).unwrap()
}

fn import(executor: &mut dyn Executor, exported: &ExportedBlocks) -> Result<(), BlockExchangeError> {
    let blocks = all_blocks(executor);
    executor.import_blocks(exported, &blocks)
}

fn computed(executor: &mut dyn Executor) -> OneSequence {
    let prompt: Vec<u32> = (0..45).map(|i| (i * 7 + 3) % 64).collect();
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let mut sequence = OneSequence::new(&prompt, Arc::new(greedy));
    sequence.prefill(executor, 20, |_| {});
    sequence
}

#[test]
fn blocks_that_enter_another_runner_have_the_same_bits_and_tokens() {
    let model = tiny();
    for kv_dtype in [KvDtype::F32, KvDtype::F16, KvDtype::BF16, KvDtype::Q8_0] {
        let [mut first, mut second] = [(); 2].map(|()| runner(&model, kv_dtype, "tiny"));
        let mut alone = computed(&mut first);
        let mut moved = computed(&mut first);
        let exported = export(&mut first);
        assert_ne!(export(&mut second), exported);
        import(&mut second, &exported).unwrap();
        assert_eq!(export(&mut second), exported, "{kv_dtype}");
        alone.decode(&mut first, 20);
        moved.decode(&mut second, 20);
        assert_eq!(moved.output(), alone.output(), "{kv_dtype}");
        // In another order: block `i` is where `n - 1 - i` was.
        let reversed: Vec<BlockId> = all_blocks(&second).into_iter().rev().collect();
        let bytes = second.export_blocks(&reversed).unwrap();
        let n_bytes = exported.layout.n_bytes;
        let blocks = |exported: &ExportedBlocks| -> Vec<Vec<u8>> {
            exported.bytes.chunks_exact(n_bytes).map(<[u8]>::to_vec).collect()
        };
        assert!(blocks(&bytes).into_iter().rev().eq(blocks(&export(&mut second))));
    }
}

#[test]
fn blocks_that_mean_something_else_are_refused() {
    let model = tiny();
    let mut ours = runner(&model, KvDtype::F16, "tiny");
    computed(&mut ours);
    let before = export(&mut ours);
    let other_model = export(&mut runner(&model, KvDtype::F16, "another"));
    let other_type = export(&mut runner(&model, KvDtype::F32, "tiny"));
    let limits = RunnerLimits { kv_dtype: KvDtype::F16, ..LIMITS };
    let example = model.runner_with(ExampleBackend::default(), &limits).unwrap();
    let other_layout = export(&mut example.with_fingerprint("tiny".into()));
    assert!(matches!(import(&mut ours, &other_model), Err(BlockExchangeError::OtherModel(_))));
    assert!(matches!(import(&mut ours, &other_type), Err(BlockExchangeError::OtherKvType(_))));
    assert!(matches!(import(&mut ours, &other_layout), Err(BlockExchangeError::OtherLayout(_))));
    let mut short = before.clone();
    short.bytes.pop();
    assert!(matches!(import(&mut ours, &short), Err(BlockExchangeError::WrongSize { .. })));
    let n_blocks = LIMITS.n_blocks;
    let no_such_block = Err(BlockExchangeError::NoSuchBlock { block: BlockId(n_blocks), n_blocks });
    assert_eq!(ours.export_blocks(&[BlockId(0), BlockId(n_blocks)]), no_such_block);
    assert_eq!(export(&mut ours), before, "a refusal changes nothing");

    let mut nameless = model.runner_with(CpuBackend::new(1), &limits).unwrap();
    assert_eq!(nameless.block_layout(), None);
    assert_eq!(nameless.export_blocks(&[BlockId(0)]), Err(BlockExchangeError::Unsupported));
}

#[test]
fn blocks_stay_while_a_step_is_in_flight() {
    let model = tiny();
    let mut runner = runner(&model, KvDtype::F32, "tiny");
    let (batch, mut output) = (ScheduledBatch::default(), StepOutput::default());
    runner.submit(&batch).unwrap();
    assert_eq!(runner.export_blocks(&[BlockId(0)]), Err(BlockExchangeError::StepInFlight));
    runner.collect(&batch, &mut output).unwrap();
    assert!(runner.export_blocks(&[BlockId(0)]).is_ok());
}

#[test]
fn a_move_to_a_tier_that_is_not_there_is_refused() {
    let model = tiny();
    let mut runner = runner(&model, KvDtype::F32, "tiny");
    assert_eq!(runner.n_blocks_in(Tier::Host), 0);
    let to_host = BlockMove { from: BlockLocation::device(BlockId(0)), to: BlockLocation::host(BlockId(0)) };
    let mut batch = ScheduledBatch::default();
    batch.push_move(to_host);
    assert_eq!(runner.submit(&batch), Err(ExecutorError::UnsupportedMove(to_host)));
    assert!(runner.export_blocks(&[BlockId(0)]).is_ok(), "no step is in flight");
}

/// The bytes of a slot of recurrent state, in the parts in which they are exchanged.
fn export_state(executor: &mut dyn Executor, slot: u32) -> Vec<Vec<u8>> {
    let layout = executor.block_layout().expect("it exchanges blocks");
    assert!(layout.n_state_parts > 0, "{layout:?}");
    (0..layout.n_state_parts)
        .map(|part| {
            let bytes = executor.export_state(MemorySlot(slot), part).expect("it is there");
            assert_eq!(bytes.len(), layout.n_bytes);
            bytes
        })
        .collect()
}

/// Models with recurrent layers only beside attention, in the same layer, and of every kind.
#[test]
fn states_that_enter_another_runner_have_the_same_bits_and_tokens() {
    for name in ["falcon-h1", "granite-hybrid", "lfm2", "nemotron-h", "qwen3-5"] {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        let options = LoadOptions { prepare: None, n_threads: 1, quantize: None };
        let model = throng_model::load(&folder, &options, &mut |_| {}).expect("loads");
        let [mut first, mut second] = [(); 2].map(|()| runner(&model, KvDtype::F16, name));
        let (mut alone, mut moved) = (computed(&mut first), computed(&mut first));
        // The state is in one of two slots.
        for slot in 0..2 {
            let parts = export_state(&mut first, slot);
            assert_ne!(export_state(&mut second, slot), parts, "{name}");
            for (part, bytes) in parts.iter().enumerate() {
                second.import_state(MemorySlot(slot), part as u32, bytes).expect("it fits");
            }
            assert_eq!(export_state(&mut second, slot), parts, "{name}");
        }
        let exported = export(&mut first);
        import(&mut second, &exported).unwrap();
        alone.decode(&mut first, 20);
        moved.decode(&mut second, 20);
        assert_eq!(moved.output(), alone.output(), "{name}");
        let n_slots = second.capacity().n_state_slots;
        assert!(second.export_state(MemorySlot(n_slots), 0).is_err(), "{name}");
        assert!(second.import_state(MemorySlot(0), 0, &[0]).is_err(), "{name}");
    }
}

/// The draft model computes its keys and values from the tokens that come with a block.
#[test]
fn blocks_of_a_model_with_a_draft_model_bring_their_tokens() {
    let model = tiny();
    let named = || Box::new(runner(&model, KvDtype::F16, "tiny")) as Box<dyn Executor>;
    let [mut first, mut second] = [(); 2].map(|()| DraftingExecutor::new(named(), named()));
    let (mut alone, mut moved) = (computed(&mut first), computed(&mut first));
    let exported = export(&mut first);
    let of_model = named().block_layout().expect("it exchanges blocks").n_bytes;
    let tokens_of = |block: usize| -> Vec<u32> {
        let bytes = &exported.bytes[block * exported.layout.n_bytes..][..exported.layout.n_bytes];
        bytes[of_model..].as_chunks().0.iter().map(|token| u32::from_le_bytes(*token)).collect()
    };
    let prompt: Vec<u32> = (0..45).map(|i| (i * 7 + 3) % 64).collect();
    // The sequence's first blocks.
    assert_eq!((tokens_of(3), tokens_of(10)), (prompt[..16].to_vec(), prompt[16..32].to_vec()));
    import(&mut second, &exported).unwrap();
    assert_eq!(export(&mut second), exported);
    alone.decode(&mut first, 20);
    moved.decode(&mut second, 20);
    assert_eq!(moved.output(), alone.output());
    let without = export(&mut *named());
    assert!(matches!(import(&mut second, &without), Err(BlockExchangeError::OtherLayout(_))));
}
