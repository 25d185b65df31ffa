//! Invisibility: the bits of a request's tokens and log-probabilities are the same alone and in any batch,
//! with any chunks, with or without a cached prefix, after preemption, on one thread and on two. Random
//! compositions run through the real scheduler and the real model; each is compared with every request run
//! alone. Does not know the backends.
//!
//! A failure prints its seed: `THRONG_SEED=<seed>` runs that composition alone.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use fastrand::Rng;
use throng_checkpoint::gguf::Gguf;
use throng_core::request::{
    Adapter, AdapterId, BeamSearch, EarlyStopping, Priority, Request, RequestId, SamplingParams,
};
use throng_core::scheduling::batch::StepOutput;
use throng_core::scheduling::executor::{Executor, ExecutorCapacity};
use throng_core::scheduling::scheduler::{Event, Scheduler, SchedulerConfig};
use throng_core::time::{Nanos, Timestamp};
use throng_kernels::quant::Format;
use throng_model::adapter::{AdapterLimits, AdapterStore, LoadedAdapter, RandomAdapter};
use throng_model::arch::Architecture;
use throng_model::backend::Backend;
use throng_model::decoder::weights::DecoderWeights;
use throng_model::kv_cache::KvDtype;
use throng_model::runner::{ModelRunner, RunnerLimits};

use crate::answers::Answers;
use crate::one_sequence::with_kind;
use crate::tiny_model::TinyModel;

/// Number of requests in compositions.
pub const N_REQUESTS: usize = 96;
const VOCABULARY: usize = 64;
/// Two fifths of the requests use an adapter.
pub const N_ADAPTERS: usize = 3;
/// Limits of the runners.
pub const LIMITS: RunnerLimits = RunnerLimits {
    n_blocks: 640,
    kv_dtype: KvDtype::F32,
    max_batch_tokens: 512,
    max_batch_sequences: 64,
    max_sequence_tokens: None,
};

/// Schedule of a composition.
#[derive(Debug)]
struct Composition {
    requests: Vec<usize>,
    /// Number of requests submitted before each step, until all are.
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
    /// Number of preempted sequences.
    pub preemptions: u64,
    /// Number of tokens found in the prefix cache.
    pub hit_tokens: u64,
    /// Number of sequences of the largest batch.
    pub largest_batch: usize,
    /// Maximum number of steps that were in flight.
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
    with_kind(i, plain)
}

/// Runs compositions of the first `n_requests` requests with executors that `make` returns for a number of
/// threads.
///
/// # Panics
/// When an answer in a composition differs from that of the request alone.
pub fn check(
    name: &str,
    make: impl Fn(usize) -> Box<dyn Executor>,
    seeds: Range<u64>,
    n_requests: usize,
    seen: &mut Seen,
) {
    check_requests(name, make, &requests(&mut Rng::with_seed(7))[..n_requests], seeds, seen);
}

/// Runs compositions of these requests, as [`check`] does.
///
/// # Panics
/// When an answer in a composition differs from that of the request alone.
pub fn check_requests(
    name: &str,
    make: impl Fn(usize) -> Box<dyn Executor>,
    requests: &[Request],
    seeds: Range<u64>,
    seen: &mut Seen,
) {
    let mut executors = [make(1), make(2)];
    let n_requests = requests.len();
    let alone: Vec<Answers> =
        (0..n_requests).map(|i| Composition::alone(i).run(&mut *executors[0], requests, seen)).collect();
    let only = std::env::var("THRONG_SEED").ok().map(|seed| seed.parse::<u64>().expect("a seed"));
    let seeds = only.map_or(seeds, |seed| seed..seed + 1);
    for seed in seeds.clone() {
        let mut rng = Rng::with_seed(seed);
        let executor = &mut *executors[rng.usize(..2)];
        let mut composition = Composition::random(&mut rng);
        composition.requests.iter_mut().for_each(|request| *request %= n_requests);
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

/// Loads a tiny model and runs compositions of the first `n_requests` requests on the backends that `make`
/// returns for a number of threads.
///
/// # Panics
/// When an answer in a composition differs from that of the request alone.
pub fn check_model<B: Backend>(
    name: &str,
    make: impl Fn(usize) -> B,
    (model, format, kv_dtype): (&TinyModel, Format, KvDtype),
    seeds: Range<u64>,
    n_requests: usize,
    seen: &mut Seen,
) {
    let gguf = Gguf::parse(&model.gguf(format)).expect("the tiny model loads");
    let architecture = Architecture::from_gguf(gguf.metadata(), &gguf).expect("the tiny model loads");
    let weights = Arc::new(
        DecoderWeights::load(&make(1), &architecture, &gguf, &mut |_| {}).expect("the tiny model loads"),
    );
    let config = Arc::new(architecture.config);
    let limits = RunnerLimits { kv_dtype, ..LIMITS };
    let adapters = Arc::new(AdapterStore::default());
    let held_as = if format == Format::F32 { Format::F32 } else { Format::BF16 };
    let adapter = |seed| {
        let random = RandomAdapter { rank: 3 + 5 * seed as usize, seed };
        let loaded = adapters
            .load_random(&make(1), &config, random, held_as, AdapterLimits::default())
            .expect("the tiny model loads");
        assert_eq!(u64::from(loaded.id.0), seed);
        loaded
    };
    let _held: Vec<LoadedAdapter> = (0..N_ADAPTERS as u64).map(adapter).collect();
    let runner = |n_threads| -> Box<dyn Executor> {
        let runner = ModelRunner::new(make(n_threads), config.clone(), weights.clone(), &limits)
            .expect("the tiny model loads");
        Box::new(runner.with_adapters(adapters.clone()))
    };
    let experts = if model.experts.0 > 0 { "experts in " } else { "" };
    check(
        &format!("{name} with {experts}{} weights and {kv_dtype} KV", format.name()),
        runner,
        seeds,
        n_requests,
        seen,
    );
}
