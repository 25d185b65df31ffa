//! Invisibility: the bits of a request's tokens and log-probabilities are the same alone and in any batch,
//! however its prompt is chunked, whether its prefix is cached, after preemption, on one thread and on two.
//! Random compositions run through the real scheduler and the real model; each is compared with every request
//! run alone.
//!
//! A failure prints its seed: `THRONG_SEED=<seed> cargo test -p throng-model --test integration invisible`.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::{harness, models};
use fastrand::Rng;
use throng_checkpoint::gguf::Gguf;
use throng_core::request::{
    Adapter, AdapterId, BeamSearch, EarlyStopping, Priority, Request, RequestId, SamplingParams,
};
use throng_core::scheduling::batch::StepOutput;
use throng_core::scheduling::executor::{Executor, ExecutorCapacity};
use throng_core::scheduling::scheduler::{Event, Scheduler, SchedulerConfig};
use throng_core::time::{Nanos, Timestamp};
use throng_kernels::Isa;
use throng_kernels::quant::Format;
use throng_model::adapter::{AdapterLimits, AdapterStore, LoadedAdapter, RandomAdapter};
use throng_model::arch::Architecture;
use throng_model::backend::Backend;
use throng_model::cpu_backend::CpuBackend;
use throng_model::decoder::weights::DecoderWeights;
use throng_model::kv_cache::KvDtype;
use throng_model::reference_backend::ReferenceBackend;
use throng_model::runner::{ModelRunner, RunnerLimits};
use throng_model::{BackendKind, LoadOptions, RunnerOptions, load};
use throng_testkit::answers::Answers;
use throng_testkit::nightly::amount;
use throng_testkit::tiny_model::TinyModel;

const N_REQUESTS: usize = 96;
const VOCABULARY: usize = 64;
/// Two fifths of the requests name one of them.
const N_ADAPTERS: usize = 3;
pub const LIMITS: RunnerLimits = RunnerLimits {
    n_blocks: 640,
    kv_dtype: KvDtype::F32,
    max_batch_tokens: 512,
    max_batch_sequences: 64,
    max_sequence_tokens: None,
};

/// How one composition is scheduled.
#[derive(Debug)]
struct Composition {
    requests: Vec<usize>,
    /// How many requests are submitted before each step until all are.
    joins_at_once: usize,
    n_blocks: u32,
    max_batch_tokens: u32,
    max_batch_sequences: u32,
    prefix_caching: bool,
    /// The simulated clock and step times set the scheduler's step-time model, and so the size of its chunks.
    clock_seed: u64,
    slowest_step_ns: u64,
}

impl Composition {
    fn random(rng: &mut Rng) -> Self {
        let n = match rng.u32(..48) {
            0 => 64,
            1..6 => rng.usize(9..=32),
            _ => rng.usize(2..=8),
        };
        let full_house = n == 64;
        let small_pool = !full_house && rng.u32(..3) > 0;
        // A request may come twice: the second finds the first one's prefix.
        let requests = (0..n).map(|_| rng.usize(..N_REQUESTS)).collect();
        Self {
            requests,
            joins_at_once: if full_house || rng.bool() { n } else { rng.usize(1..=n) },
            // The longest sequence takes 8 blocks.
            n_blocks: if small_pool { rng.u32(8..=8 + n as u32) } else { LIMITS.n_blocks },
            max_batch_tokens: if full_house {
                512
            } else {
                *rng.choice(&[1, 7, 64, 512]).expect("not empty")
            },
            max_batch_sequences: if full_house { 64 } else { *rng.choice(&[3, 64, 64]).expect("not empty") },
            prefix_caching: rng.bool(),
            clock_seed: rng.u64(..),
            slowest_step_ns: if rng.bool() { 300_000_000 } else { 1_000_000 },
        }
    }

    fn alone(request: usize) -> Self {
        Self {
            requests: vec![request],
            joins_at_once: 1,
            n_blocks: LIMITS.n_blocks,
            max_batch_tokens: LIMITS.max_batch_tokens,
            max_batch_sequences: LIMITS.max_batch_sequences,
            prefix_caching: false,
            clock_seed: 0,
            slowest_step_ns: 1_000,
        }
    }

    /// Runs to the end. Requests get the ids `0..` in the order of `self.requests`.
    fn run(&self, executor: &mut dyn Executor, requests: &[Request], seen: &mut Seen) -> Answers {
        let capacity = ExecutorCapacity { n_blocks: self.n_blocks, ..executor.capacity() };
        let config = SchedulerConfig {
            max_batch_tokens: self.max_batch_tokens,
            max_batch_sequences: self.max_batch_sequences,
            prefix_caching: self.prefix_caching,
            ..Default::default()
        };
        let mut scheduler = Scheduler::new(config, capacity);
        let mut clock = Rng::with_seed(self.clock_seed);
        let (mut answers, mut output) = (Answers::default(), StepOutput::default());
        let (mut now, mut n_joined) = (Timestamp::default(), 0);
        let mut in_flight = VecDeque::new();
        loop {
            for _ in 0..self.joins_at_once.min(self.requests.len() - n_joined) {
                let request =
                    Request { id: RequestId(n_joined as u64), ..requests[self.requests[n_joined]].clone() };
                scheduler.submit(request, now).expect("every request fits");
                n_joined += 1;
            }
            let mut emit = |event: Event<'_>| answers.note(&event);
            while in_flight.len() < scheduler.max_steps_in_flight() {
                let Some(step) = scheduler.plan(now, &mut emit) else { break };
                seen.largest_batch = seen.largest_batch.max(step.batch().sequences().len());
                executor.submit(step.batch()).expect("the step begins");
                in_flight.push_back(step);
            }
            seen.most_in_flight = seen.most_in_flight.max(in_flight.len());
            let Some(step) = in_flight.pop_front() else {
                assert!(scheduler.is_idle(), "nothing to do although requests wait");
                break;
            };
            executor.collect(step.batch(), &mut output).expect("the step succeeds");
            now = now + Nanos(clock.u64(1..self.slowest_step_ns));
            scheduler.complete(step, &output, now, &mut emit);
        }
        seen.preemptions += scheduler.stats().counters.preemptions;
        seen.hit_tokens += scheduler.stats().counters.cache_hit_tokens;
        answers
    }
}

/// Counts what the compositions have covered, so that the test fails if a case is not covered.
#[derive(Debug, Default)]
pub struct Seen {
    pub preemptions: u64,
    pub hit_tokens: u64,
    pub largest_batch: usize,
    pub most_in_flight: usize,
}

/// Requests of all kinds; a third of the prompts begins with the same 40 tokens.
pub fn requests(rng: &mut Rng) -> Vec<Request> {
    let mut tokens = |n: usize| -> Vec<u32> { (0..n).map(|_| rng.u32(..VOCABULARY as u32)).collect() };
    let shared = tokens(40);
    let prompts: Vec<Vec<u32>> = (0..N_REQUESTS)
        .map(|i| match i % 3 {
            0 => [shared.clone(), tokens(1 + i % 13)].concat(),
            1 => tokens(1 + i % 20),
            _ => tokens(1 + (i * 7) % 90),
        })
        .collect();
    let request = |(i, prompt): (usize, Vec<u32>)| Request {
        adapter: (i % 5 < 2).then_some(Adapter::numbered(AdapterId((i % N_ADAPTERS) as u32))),
        n: if i % 11 == 5 { 3 } else { 1 },
        priority: Priority((i % 3) as i32),
        ..Request::plain(RequestId(0), prompt, sampling(i, rng))
    };
    prompts.into_iter().enumerate().map(request).collect()
}

fn sampling(i: usize, rng: &mut Rng) -> SamplingParams {
    let plain = SamplingParams {
        seed: rng.u64(..),
        max_tokens: 1 + (i * 5 % 32) as u32,
        logprobs: (i % 4 != 3).then_some((i % 5) as u32),
        prompt_logprobs: (i % 6 == 1).then_some(3),
        beams: (i % 12 == 5).then_some(BeamSearch {
            width: 3 + i as u32 % 2,
            length_penalty: 1.0,
            early_stopping: EarlyStopping::default(),
        }),
        ..Default::default()
    };
    harness::with_kind(i, plain)
}

/// Runs compositions with executors that `make` returns for a number of threads.
fn check(name: &str, make: impl Fn(usize) -> Box<dyn Executor>, seeds: Range<u64>, seen: &mut Seen) {
    check_requests(name, make, &requests(&mut Rng::with_seed(7)), seeds, seen);
}

/// The same for these requests.
pub fn check_requests(
    name: &str,
    make: impl Fn(usize) -> Box<dyn Executor>,
    requests: &[Request],
    seeds: Range<u64>,
    seen: &mut Seen,
) {
    let mut executors = [make(1), make(2)];
    let alone: Vec<Answers> =
        (0..N_REQUESTS).map(|i| Composition::alone(i).run(&mut *executors[0], requests, seen)).collect();
    let only = std::env::var("THRONG_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    let seeds = only.map_or(seeds, |seed| seed..seed + 1);
    for seed in seeds.clone() {
        let mut rng = Rng::with_seed(seed);
        let executor = &mut *executors[rng.usize(..2)];
        let composition = Composition::random(&mut rng);
        let answers = composition.run(executor, requests, seen);
        for (i, &request) in composition.requests.iter().enumerate() {
            assert!(
                answers.renamed(i, i) == alone[request].renamed(0, i),
                "THRONG_SEED={seed}: request {request} as number {i} differs on {name} in {composition:?}"
            );
        }
    }
    println!("{name}: compositions {seeds:?}");
}

/// Loads a tiny model and runs compositions on the backends that `make` returns for a number of threads.
fn check_model<B: Backend>(
    name: &str,
    make: impl Fn(usize) -> B,
    (model, format, kv_dtype): (&TinyModel, Format, KvDtype),
    seeds: Range<u64>,
    seen: &mut Seen,
) {
    let gguf = Gguf::parse(&model.gguf(format)).unwrap();
    let architecture = Architecture::from_gguf(gguf.metadata(), &gguf).unwrap();
    let weights = Arc::new(DecoderWeights::load(&make(1), &architecture, &gguf, &mut |_| {}).unwrap());
    let config = Arc::new(architecture.config);
    let limits = RunnerLimits { kv_dtype, ..LIMITS };
    let adapters = Arc::new(AdapterStore::default());
    let held_as = if format == Format::F32 { Format::F32 } else { Format::BF16 };
    let adapter = |seed| {
        let random = RandomAdapter { rank: 3 + 5 * seed as usize, seed };
        let loaded =
            adapters.load_random(&make(1), &config, random, held_as, AdapterLimits::default()).unwrap();
        assert_eq!(u64::from(loaded.id.0), seed);
        loaded
    };
    let _held: Vec<LoadedAdapter> = (0..N_ADAPTERS as u64).map(adapter).collect();
    let runner = |n_threads| -> Box<dyn Executor> {
        let runner = ModelRunner::new(make(n_threads), config.clone(), weights.clone(), &limits).unwrap();
        Box::new(runner.with_adapters(adapters.clone()))
    };
    let experts = if model.experts.0 > 0 { "experts in " } else { "" };
    check(&format!("{name} with {experts}{} weights and {kv_dtype} KV", format.name()), runner, seeds, seen);
}

/// Every family of the golden test, with its own weights, in a few compositions.
#[test]
fn no_family_depends_on_the_batch() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let folders = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let mut folders: Vec<_> = folders.filter(|path| path.join("expected.safetensors").exists()).collect();
    folders.sort();
    let mut seen = Seen::default();
    for folder in folders {
        let options = LoadOptions { prepare: None, n_threads: 2, quantize: None };
        let model = load(&folder, &options, &mut |_| {}).unwrap();
        let random = |seed| RandomAdapter { rank: 3 + 5 * seed as usize, seed };
        let load = |seed| model.load_random_adapter(BackendKind::Cpu, random(seed), AdapterLimits::default());
        let held: Vec<LoadedAdapter> = (0..N_ADAPTERS as u64).map(|seed| load(seed).unwrap()).collect();
        assert!(held.iter().zip(0..).all(|(adapter, id)| adapter.id == AdapterId(id)));
        let runner = |n_threads| {
            model.runner(&RunnerOptions { backend: BackendKind::Cpu, n_threads, limits: LIMITS }).unwrap()
        };
        check(&model.name, runner, 1000..1000 + amount(2, 6), &mut seen);
    }
    println!("{seen:?}");
}

#[test]
fn results_do_not_depend_on_the_batch() {
    let narrow = models::narrow();
    let two_layers = models::two_layers();
    let experts = TinyModel { architecture: "qwen3moe", experts: (8, 2), ..narrow.clone() };
    let models = [
        (&narrow, Format::F32, KvDtype::F32),
        (&two_layers, Format::Q8_0, KvDtype::F16),
        (&TinyModel::default(), Format::Q4_K, KvDtype::Q8_0),
        (&experts, Format::Q8_0, KvDtype::F16),
        (&two_layers, Format::Q4_0, KvDtype::BF16),
    ];
    let (mut seen, mut first) = (Seen::default(), 0);
    let mut next = |n: u64| {
        first += n;
        first - n..first
    };
    check_model("reference", |_| ReferenceBackend, models[0], next(amount(20, 40)), &mut seen);
    for isa in Isa::available() {
        let n = if isa == Isa::best() { amount(50, 200) } else { amount(8, 25) };
        for model in models {
            check_model(
                isa.name(),
                |n_threads| CpuBackend::with_isa(n_threads, isa),
                model,
                next(n),
                &mut seen,
            );
        }
    }
    println!("{seen:?}");
    if std::env::var("THRONG_SEED").is_err() {
        assert!(seen.preemptions > 50 && seen.hit_tokens > 1000 && seen.largest_batch == 64, "{seen:?}");
    }
}
