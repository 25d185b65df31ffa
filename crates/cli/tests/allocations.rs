//! A token costs no allocation, from the engine's thread to the reader's: many users decode on the real
//! engine with the CPU backend, on two kernel threads, while every allocation of the process is counted.

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use throng_core::request::{Request, SamplingParams, TenantId};
use throng_core::scheduling::executor::ExecutorError;
use throng_engine::{Engine, EngineConfig, EngineHandle, StreamEvent, TokenStream};
use throng_kernels::quant::Format;
use throng_model::kv_cache::KvDtype;
use throng_model::runner::RunnerLimits;
use throng_model::{BackendKind, LoadOptions, RunnerOptions, load};
use throng_testkit::tiny_model::TinyModel;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const N_USERS: u32 = 16;
const N_PROMPT: u32 = 16;
/// After this many tokens for each user, histories and block tables have capacity for the next ones, since
/// they grow by doubling.
const N_WARM: usize = 540;
const N_COUNTED: usize = 124;
/// Channels allocate messages in blocks; both kinds of channel have at least this many in one.
const MESSAGES_A_BLOCK: usize = 31;

fn engine(shape: &TinyModel) -> EngineHandle {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    shape.write_gguf(Format::Q8_0, &path).unwrap();
    let model =
        load(&path, &LoadOptions { prepare: None, quantize: None, n_threads: 2 }, &mut |_| {}).unwrap();
    let limits = RunnerLimits {
        n_blocks: 2048,
        kv_dtype: KvDtype::F16,
        max_batch_tokens: 256,
        max_batch_sequences: 32,
        max_sequence_tokens: None,
    };
    let options = RunnerOptions { backend: BackendKind::Cpu, n_threads: 2, limits };
    let make = move || model.runner(&options).map_err(|error| ExecutorError::Device(error.to_string()));
    Engine::start(EngineConfig::default(), make).unwrap()
}

/// Greedy, all tokens, top-p, top-k; every other one with penalties.
fn sampling(user: u32) -> SamplingParams {
    let mut params = SamplingParams {
        temperature: if user.is_multiple_of(4) { 0.0 } else { 0.8 },
        repetition_penalty: if user.is_multiple_of(2) { 1.0 } else { 1.1 },
        max_tokens: 2000,
        ignore_eos: true,
        seed: user.into(),
        ..SamplingParams::default()
    };
    match user % 4 {
        2 => params.top_p = 0.9,
        3 => params.top_k = 20,
        _ => {}
    }
    params
}

/// Takes `n` tokens of every stream, in turn.
fn read(streams: &mut [TokenStream], n: usize) {
    for _ in 0..n {
        for stream in &mut *streams {
            loop {
                match stream.blocking_next() {
                    Some(StreamEvent::Token { .. }) => break,
                    Some(StreamEvent::Prompt { .. }) => {}
                    other => panic!("not a token: {other:?}"),
                }
            }
        }
    }
}

fn check(shape: &TinyModel) {
    let engine = engine(shape);
    let submit = |user: u32| {
        let request = Request {
            tenant: TenantId(if user.is_multiple_of(2) { "even" } else { "odd" }.into()),
            ..Request::plain(
                engine.next_request_id(),
                (0..N_PROMPT).map(|i| (user + i) % 64).collect::<Vec<_>>(),
                sampling(user),
            )
        };
        engine.submit(request).expect("there is room")
    };
    let mut streams: Vec<_> = (0..N_USERS).map(submit).collect();
    read(&mut streams, N_WARM);
    let region = Region::new(ALLOCATOR);
    let steps_before = engine.stats().scheduler.counters.steps;
    read(&mut streams, N_COUNTED);
    let n_steps = (engine.stats().scheduler.counters.steps - steps_before) as usize;
    let change = region.change();
    let n_allocations = change.allocations + change.reallocations;
    // One message to the engine for each step, one to a reader for each token.
    let of_channels = (n_steps + N_USERS as usize * N_COUNTED) / MESSAGES_A_BLOCK + 1;
    println!("{n_allocations} allocations, {of_channels} of channels at most, in {n_steps} steps");
    assert!(n_steps > of_channels, "one allocation a step would go unnoticed");
    assert!(n_allocations <= of_channels, "{n_allocations} allocations in {n_steps} steps: {change:?}");
}

/// A single test in this binary, since nothing else may allocate meanwhile.
#[test]
fn a_token_costs_no_allocation() {
    let dense = TinyModel { n_layers: 2, vocabulary: 5000, context: 2048, ..Default::default() };
    check(&dense);
    check(&TinyModel { architecture: "qwen3moe", experts: (8, 2), ..dense });
}
