//! Invisibility of pictures: the bits of a request with pictures are the same alone and in any batch, however
//! chunks cut its pictures, whether its prefix was cached, after preemption, on one thread and on two. And a
//! picture is encoded once.
//!
//! A failure prints its seed: `THRONG_SEED=<seed> cargo test -p throng-vision --test integration invisible`.

use std::ops::Range;
use std::sync::Arc;

use fastrand::Rng;
use throng_core::prompt_media::{PromptMedia, RotaryPosition};
use throng_core::request::{Request, RequestId, SamplingParams, TenantId};
use throng_core::scheduling::batch::StepOutput;
use throng_core::scheduling::executor::{Executor, ExecutorCapacity};
use throng_core::scheduling::scheduler::{Event, Scheduler, SchedulerConfig};
use throng_core::time::{Nanos, Timestamp};
use throng_model::kv_cache::KvDtype;
use throng_model::runner::RunnerLimits;
use throng_model::{BackendKind, RunnerOptions};
use throng_testkit::answers::Answers;
use throng_testkit::nightly::amount;

use crate::cases::Folder;
use crate::families::folder;

const N_REQUESTS: usize = 24;
const LIMITS: RunnerLimits = RunnerLimits {
    n_blocks: 200,
    kv_dtype: KvDtype::F32,
    max_batch_tokens: 192,
    max_batch_sequences: 16,
    max_sequence_tokens: None,
};

/// How requests are scheduled.
#[derive(Debug)]
struct Composition {
    requests: Vec<usize>,
    joins_at_once: usize,
    n_blocks: u32,
    max_batch_tokens: u32,
    prefix_caching: bool,
    clock_seed: u64,
    slowest_step_ns: u64,
}

impl Composition {
    fn random(rng: &mut Rng, n_blocks: u32, sizes: &[u32]) -> Self {
        let n = rng.usize(2..=10);
        Self {
            requests: (0..n).map(|_| rng.usize(..N_REQUESTS)).collect(),
            joins_at_once: if rng.bool() { n } else { rng.usize(1..=n) },
            n_blocks: if rng.u32(..3) > 0 {
                rng.u32(n_blocks..=n_blocks + n as u32 / 2)
            } else {
                LIMITS.n_blocks
            },
            max_batch_tokens: *rng.choice(sizes).expect("not empty"),
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
            prefix_caching: false,
            clock_seed: 0,
            slowest_step_ns: 1_000,
        }
    }

    fn run(&self, executor: &mut dyn Executor, requests: &[Request], seen: &mut Seen) -> Answers {
        let capacity = ExecutorCapacity { n_blocks: self.n_blocks, ..executor.capacity() };
        let config = SchedulerConfig {
            max_batch_tokens: self.max_batch_tokens,
            prefix_caching: self.prefix_caching,
            ..Default::default()
        };
        let mut scheduler = Scheduler::new(config, capacity);
        let mut clock = Rng::with_seed(self.clock_seed);
        let (mut answers, mut output) = (Answers::default(), StepOutput::default());
        let (mut now, mut n_joined) = (Timestamp::default(), 0);
        loop {
            for _ in 0..self.joins_at_once.min(self.requests.len() - n_joined) {
                let request =
                    Request { id: RequestId(n_joined as u64), ..requests[self.requests[n_joined]].clone() };
                scheduler.submit(request, now).expect("every request fits");
                n_joined += 1;
            }
            let mut emit = |event: Event<'_>| answers.note(&event);
            let Some(step) = scheduler.plan(now, &mut emit) else {
                assert!(scheduler.is_idle(), "nothing to do although requests wait: {self:?}");
                break;
            };
            for scheduled in step.batch().sequences() {
                let (start, end) = (scheduled.start, scheduled.start + scheduled.n_tokens() as u32);
                let media = scheduled.media.as_deref();
                let cut = [start, end].map(|at| media.and_then(|media| media.span_cut_at(at)).is_some());
                assert!(!capacity.keeps_media_whole || cut == [false; 2], "a picture is cut");
                seen.n_cuts += u64::from(cut[0]);
            }
            executor.execute(step.batch(), &mut output).expect("the step succeeds");
            seen.n_encoded += u64::from(output.media.n_encoded);
            seen.n_known += u64::from(output.media.n_known);
            now = now + Nanos(clock.u64(1..self.slowest_step_ns));
            scheduler.complete(step, &output, now, &mut emit);
        }
        seen.preemptions += scheduler.stats().counters.preemptions;
        seen.hit_tokens += scheduler.stats().counters.cache_hit_tokens;
        answers
    }
}

/// What the compositions have covered.
#[derive(Debug, Default)]
struct Seen {
    preemptions: u64,
    hit_tokens: u64,
    n_cuts: u64,
    n_encoded: u64,
    n_known: u64,
}

/// Requests of the folder's cases, and others with the same beginnings or other tenants.
fn requests(folder: &Folder, rng: &mut Rng) -> Vec<Request> {
    let cases = folder.cases();
    let vocabulary = folder.model.config.vocabulary_size as u32;
    let request = |i: usize| {
        let case = &cases[i % cases.len()];
        let more: Vec<u32> = (0..i / cases.len() * 9).map(|_| rng.u32(..vocabulary.min(280))).collect();
        let prompt = [&case.input_ids[..], &more].concat();
        let media = case.media.as_ref().map(|media| {
            let mut longer = (**media).clone();
            if !longer.positions.is_empty() {
                let next = |i: usize| media.rotary_position((case.input_ids.len() + i) as u32);
                longer.positions.extend((0..more.len()).map(next));
            }
            Arc::new(longer)
        });
        let sampling = SamplingParams {
            seed: rng.u64(..),
            temperature: if i.is_multiple_of(3) { 0.0 } else { 0.9 },
            max_tokens: 1 + (i * 5 % 24) as u32,
            logprobs: Some(2),
            prompt_logprobs: (i % 6 == 1).then_some(3),
            ..Default::default()
        };
        Request {
            media,
            tenant: TenantId(if i % 7 == 3 { "other" } else { "" }.into()),
            ..Request::plain(RequestId(0), prompt, sampling)
        }
    };
    (0..N_REQUESTS).map(request).collect()
}

fn runner(folder: &Folder, n_threads: usize) -> Box<dyn Executor> {
    folder
        .model
        .runner(&RunnerOptions { backend: BackendKind::Cpu, n_threads, limits: LIMITS })
        .expect("it runs")
}

fn check(name: &str, n_blocks: u32, sizes: &[u32], seeds: Range<u64>, seen: &mut Seen) {
    let Some(path) = folder(name) else { return };
    let folder = Folder::open(&path);
    let mut executors = [runner(&folder, 1), runner(&folder, 2)];
    let requests = requests(&folder, &mut Rng::with_seed(7));
    let alone: Vec<Answers> =
        (0..N_REQUESTS).map(|i| Composition::alone(i).run(&mut *executors[0], &requests, seen)).collect();
    let only = std::env::var("THRONG_SEED").ok().map(|seed| seed.parse::<u64>().expect("a number"));
    for seed in only.map_or(seeds, |seed| seed..seed + 1) {
        let mut rng = Rng::with_seed(seed);
        let executor = &mut *executors[rng.usize(..2)];
        let composition = Composition::random(&mut rng, n_blocks, sizes);
        let answers = composition.run(executor, &requests, seen);
        for (i, &request) in composition.requests.iter().enumerate() {
            assert!(
                answers.renamed(i, i) == alone[request].renamed(0, i),
                "THRONG_SEED={seed}: request {request} as number {i} differs on {name} in {composition:?}"
            );
        }
    }
}

#[test]
fn pictures_do_not_depend_on_the_batch() {
    let mut seen = Seen::default();
    check("qwen3-vl", 8, &[1, 7, 40, 192], 0..amount(60, 200), &mut seen);
    println!("{seen:?}");
    if std::env::var("THRONG_SEED").is_err() {
        assert!(seen.preemptions > 10 && seen.hit_tokens > 500 && seen.n_cuts > 50, "{seen:?}");
    }
    for name in ["qwen3-5", "smolvlm", "mistral3", "qwen2-5-vl"] {
        check(name, 16, &[1, 7, 40, 192], 1000..1000 + amount(8, 40), &mut seen);
    }
    println!("{seen:?}");
}

#[test]
fn whole_pictures_do_not_depend_on_the_batch() {
    let mut seen = Seen::default();
    check("gemma3", 16, &[33, 48, 192], 0..amount(40, 200), &mut seen);
    println!("{seen:?}");
}

/// Runs requests one after the other on one executor and scheduler.
fn counts(folder: &Folder, requests: &[Request]) -> Seen {
    let mut seen = Seen::default();
    let composition = Composition {
        requests: (0..requests.len()).collect(),
        joins_at_once: 1,
        prefix_caching: true,
        ..Composition::alone(0)
    };
    composition.run(&mut *runner(folder, 1), requests, &mut seen);
    seen
}

#[test]
fn a_picture_is_encoded_once_for_a_tenant() {
    let path = folder("qwen3-vl").expect("a fixture");
    let folder = Folder::open(&path);
    let case = folder.cases().into_iter().find(|case| case.name == "one").expect("it is there");
    let sampling = SamplingParams { max_tokens: 2, ..Default::default() };
    let request = |tenant: &str, more: u32| Request {
        media: case.media.as_ref().map(|media| {
            let mut media = (**media).clone();
            media.positions.push(RotaryPosition::of_text(20));
            Arc::new(media)
        }),
        tenant: TenantId(tenant.into()),
        ..Request::plain(RequestId(0), [&case.input_ids[..], &[more]].concat(), sampling.clone())
    };
    let same: Vec<Request> = (0..4).map(|i| request("a", 5 + i)).collect();
    let seen = counts(&folder, &same);
    assert_eq!(seen.n_encoded, 1, "{seen:?}");
    assert!(seen.hit_tokens > 0, "the prefix with the picture is shared: {seen:?}");
    let others = [request("a", 5), request("b", 5), request("a", 5), request("b", 5)];
    let seen = counts(&folder, &others);
    assert_eq!(seen.n_encoded, 2, "once a tenant: {seen:?}");
}

#[test]
#[should_panic(expected = "cannot be encoded by this model")]
fn a_picture_that_is_not_there_fails_its_request() {
    let path = folder("qwen3-vl").expect("a fixture");
    let folder = Folder::open(&path);
    let case = folder.cases().into_iter().find(|case| case.name == "one").expect("it is there");
    let media = PromptMedia { contents: Vec::new(), ..(**case.media.as_ref().expect("a picture")).clone() };
    let sampling = SamplingParams { max_tokens: 2, ..Default::default() };
    let lost = Request {
        media: Some(Arc::new(media)),
        ..Request::plain(RequestId(0), case.input_ids.clone(), sampling)
    };
    Composition::alone(0).run(&mut *runner(&folder, 1), &[lost], &mut Seen::default());
}
