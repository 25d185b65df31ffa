//! A draft model does not show: whatever it is, the bits of a request's tokens and log-probabilities are
//! those without it. And it follows the model: one with the same weights is never wrong, through prefix hits,
//! preemptions, chunks and rejected drafts.
//!
//! A failure prints its seed: `THRONG_SEED=<seed> cargo test -p throng-model --test integration draft_model`.

use std::collections::BTreeSet;
use std::sync::Arc;

use fastrand::Rng;
use throng_core::request::{Request, RequestId, SamplingParams};
use throng_core::scheduling::batch::{ScheduledBatch, StepOutput};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_core::scheduling::scheduler::{Counters, Event, Scheduler, SchedulerConfig, SpeculationMethod};
use throng_core::time::{Nanos, Timestamp};
use throng_kernels::quant::Format;
use throng_model::drafting::DraftingExecutor;
use throng_model::kv_cache::KvDtype;
use throng_model::load::load_bytes;
use throng_model::runner::RunnerLimits;
use throng_model::{BackendKind, LoadOptions, RunnerOptions};
use throng_testkit::answers::Answers;
use throng_testkit::tiny_model::TinyModel;

use crate::draft_harness::{LIMITS, nothing_more, requests, run};
use crate::models;

/// Each compares all requests.
const N_SEEDS: u64 = 10;

fn target() -> TinyModel {
    models::narrow()
}

fn executor(model: &TinyModel, format: Format, kv_dtype: KvDtype) -> Box<dyn Executor> {
    let options = LoadOptions { prepare: None, n_threads: 2, quantize: None };
    let model = load_bytes("tiny", &model.gguf(format), &options, &mut |_| {}).expect("loads");
    let limits = RunnerLimits { kv_dtype, ..LIMITS };
    let options = RunnerOptions { backend: BackendKind::Cpu, n_threads: 2, limits };
    model.runner_on(&options.threads(), &options).expect("fits")
}

/// A model with a draft model whose passes take no time, so that drafts are always worth it.
struct Timeless(DraftingExecutor);

impl Timeless {
    fn new(draft_model: Box<dyn Executor>) -> Self {
        Self(DraftingExecutor::new(executor(&target(), Format::F32, KvDtype::F32), draft_model))
    }
}

impl Executor for Timeless {
    fn capacity(&self) -> ExecutorCapacity {
        self.0.capacity()
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        self.0.execute(batch, output)?;
        output.draft_passes.iter_mut().for_each(|pass| pass.took = Nanos(1_000));
        Ok(())
    }
}

fn one_by_one(requests: &[Request]) -> Answers {
    let mut model = executor(&target(), Format::F32, KvDtype::F32);
    let config = SchedulerConfig { max_draft_tokens: 0, max_batch_sequences: 1, ..Default::default() };
    run(&mut *model, requests, (config, LIMITS.n_blocks), &mut nothing_more).0
}

/// Requests of which every right draft is counted as accepted: after an end, a constraint is not asked
/// whether it is right.
fn counted_requests(rng: &mut Rng) -> Vec<Request> {
    let mut all = requests(rng);
    for request in all.iter_mut().filter(|request| request.constraint.is_some()) {
        let sampling = SamplingParams { stop_token_ids: vec![], ..(*request.sampling).clone() };
        request.sampling = Arc::new(sampling);
    }
    all
}

/// A configuration, and a number of blocks that forces preemptions in some runs: the longest sequence takes
/// 5.
fn configuration(rng: &mut Rng) -> (SchedulerConfig, u32) {
    let methods = [SpeculationMethod::DraftModel, SpeculationMethod::DraftModelAndPromptLookup];
    let config = SchedulerConfig {
        max_draft_tokens: rng.u32(1..9),
        speculation: *rng.choice(&methods).expect("not empty"),
        prompt_lookup_min: rng.u32(1..4),
        max_batch_tokens: *rng.choice(&[7, 40, 256]).expect("not empty"),
        max_batch_sequences: rng.u32(1..=12),
        prefix_caching: rng.bool(),
        ..Default::default()
    };
    (config, if rng.bool() { rng.u32(5..9) } else { LIMITS.n_blocks })
}

fn seeds() -> std::ops::Range<u64> {
    let only = std::env::var("THRONG_SEED").ok().map(|seed| seed.parse::<u64>().expect("a number"));
    only.map_or(0..N_SEEDS, |seed| seed..seed + 1)
}

fn add(seen: &mut Counters, counters: Counters) {
    seen.drafts += counters.drafts;
    seen.draft_tokens += counters.draft_tokens;
    seen.accepted_draft_tokens += counters.accepted_draft_tokens;
    seen.preemptions += counters.preemptions;
    seen.cache_hit_tokens += counters.cache_hit_tokens;
}

fn check(draft: &TinyModel, format: Format, kv_dtype: KvDtype) -> Counters {
    let mut executor = Timeless::new(executor(draft, format, kv_dtype));
    let mut seen = Counters::default();
    for seed in seeds() {
        let mut rng = Rng::with_seed(seed);
        let mut requests = requests(&mut rng);
        for request in &mut requests {
            if rng.u32(..8) > 0 {
                continue;
            }
            let sampling = SamplingParams { max_draft_tokens: rng.u32(..3), ..(*request.sampling).clone() };
            request.sampling = Arc::new(sampling);
        }
        let expected = one_by_one(&requests);
        let (answers, counters) = run(&mut executor, &requests, configuration(&mut rng), &mut nothing_more);
        assert!(answers == expected, "THRONG_SEED={seed}: an answer differs with the draft model {draft:?}");
        add(&mut seen, counters);
    }
    println!("{draft:?} in {format:?}: {seen:?}");
    seen
}

#[test]
fn a_draft_model_does_not_show() {
    let same = check(&target(), Format::Q8_0, KvDtype::F16);
    let other = TinyModel { architecture: "llama", n_heads: 4, head_dim: 16, seed: 5, ..target() };
    let others = [
        check(&other, Format::F32, KvDtype::F32),
        // Unused tokens at the end, more than the model has, or fewer.
        check(&TinyModel { vocabulary: 80, ..other.clone() }, Format::Q8_0, KvDtype::F32),
        check(&TinyModel { vocabulary: 60, seed: 1, ..target() }, Format::F32, KvDtype::F32),
        // A shorter context.
        check(&TinyModel { context: 24, ..target() }, Format::F32, KvDtype::F32),
    ];
    if std::env::var("THRONG_SEED").is_err() {
        let of_all = |of: fn(&Counters) -> u64| of(&same) + others.iter().map(of).sum::<u64>();
        let (preemptions, hits) = (of_all(|seen| seen.preemptions), of_all(|seen| seen.cache_hit_tokens));
        let (drafts, accepted) =
            (of_all(|seen| seen.draft_tokens), of_all(|seen| seen.accepted_draft_tokens));
        assert!(same.accepted_draft_tokens > 500 && accepted > 1000 && drafts - accepted > 1000);
        assert!(preemptions > 40 && hits > 1000, "{preemptions} preemptions, {hits} hits");
    }
}

#[test]
fn a_draft_model_that_is_the_model_is_never_wrong() {
    let mut executor = Timeless::new(executor(&target(), Format::F32, KvDtype::F32));
    let mut seen = Counters::default();
    for seed in seeds() {
        let mut rng = Rng::with_seed(seed);
        let requests = counted_requests(&mut rng);
        let expected = one_by_one(&requests);
        let (config, n_blocks) = configuration(&mut rng);
        let config = SchedulerConfig { speculation: SpeculationMethod::DraftModel, ..config };
        let (answers, counters) = run(&mut executor, &requests, (config, n_blocks), &mut nothing_more);
        assert!(answers == expected, "THRONG_SEED={seed}: an answer differs");
        assert_eq!(
            counters.accepted_draft_tokens, counters.draft_tokens,
            "THRONG_SEED={seed}: a wrong draft"
        );
        add(&mut seen, counters);
    }
    println!("{seen:?}");
    assert!(seen.draft_tokens > 1000 || std::env::var("THRONG_SEED").is_ok());
}

/// Runs all requests and ends some of them midway. The answers, and which requests ran to their end.
fn run_with_aborts(
    executor: &mut dyn Executor,
    requests: &[Request],
    (config, n_blocks): (SchedulerConfig, u32),
    rng: &mut Rng,
) -> (Answers, BTreeSet<RequestId>) {
    let capacity = ExecutorCapacity { n_blocks, ..executor.capacity() };
    let mut scheduler = Scheduler::new(config, capacity);
    let (mut answers, mut output, mut now) =
        (Answers::default(), StepOutput::default(), Timestamp::default());
    let mut whole: BTreeSet<RequestId> = requests.iter().map(|request| request.id).collect();
    for request in requests {
        scheduler.submit(request.clone(), now).expect("every request fits");
    }
    let mut emit = |event: Event<'_>| answers.note(&event);
    while let Some(step) = scheduler.plan(now, &mut emit) {
        if rng.u32(..4) == 0 {
            let request = RequestId(rng.u64(..requests.len() as u64));
            if scheduler.is_alive(request) {
                whole.remove(&request);
                scheduler.abort(request, now, &mut emit);
            }
        }
        executor.execute(step.batch(), &mut output).expect("the step succeeds");
        now = now + Nanos::from_ms(1);
        scheduler.complete(step, &output, now, &mut emit);
        scheduler.check_invariants().expect("the books are in order");
    }
    assert!(scheduler.is_idle() && scheduler.pool().n_used() == 0, "a block was lost");
    (answers, whole)
}

#[test]
fn requests_that_end_midway_do_not_show() {
    let mut executor = Timeless::new(executor(&target(), Format::Q8_0, KvDtype::F16));
    let mut n_aborted = 0;
    for seed in seeds() {
        let mut rng = Rng::with_seed(seed);
        let requests = requests(&mut rng);
        let expected = one_by_one(&requests);
        let settings = configuration(&mut rng);
        let (answers, whole) = run_with_aborts(&mut executor, &requests, settings, &mut rng);
        n_aborted += requests.len() - whole.len();
        for (sequence, expected) in &expected.outputs {
            let of_sequence = answers.outputs.get(sequence).map_or(&[][..], Vec::as_slice);
            let is_same = if whole.contains(&sequence.request) {
                of_sequence == expected
            } else {
                expected.starts_with(of_sequence)
            };
            assert!(is_same, "THRONG_SEED={seed}: the answer of {sequence} differs");
        }
    }
    assert!(n_aborted > 20 || std::env::var("THRONG_SEED").is_ok(), "{n_aborted}");
}

/// Draft models that fail, or that propose what is no token of the model.
struct Faulty(Box<dyn Executor>, Rng);

impl Executor for Faulty {
    fn capacity(&self) -> ExecutorCapacity {
        self.0.capacity()
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        match self.1.u32(..4) {
            0 => Err(ExecutorError::Device("it is broken".into())),
            _ => self.0.execute(batch, output),
        }
    }
}

#[test]
fn a_draft_model_that_fails_costs_drafts_only() {
    let inner = executor(&target(), Format::F32, KvDtype::F32);
    let mut executor = Timeless::new(Box::new(Faulty(inner, Rng::with_seed(3))));
    let requests = counted_requests(&mut Rng::with_seed(1));
    let config = SchedulerConfig { speculation: SpeculationMethod::DraftModel, ..Default::default() };
    let (answers, seen) = run(&mut executor, &requests, (config, LIMITS.n_blocks), &mut nothing_more);
    assert!(answers == one_by_one(&requests));
    assert!(seen.accepted_draft_tokens > 50 && seen.accepted_draft_tokens == seen.draft_tokens, "{seen:?}");
}

/// A draft model that is slow at first.
struct SlowAtFirst(DraftingExecutor, usize);

impl Executor for SlowAtFirst {
    fn capacity(&self) -> ExecutorCapacity {
        self.0.capacity()
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        self.0.execute(batch, output)?;
        for pass in &mut output.draft_passes {
            self.1 += 1;
            pass.took = if self.1 < 4 { Nanos::from_ms(40) } else { Nanos(1_000) };
        }
        Ok(())
    }
}

#[test]
fn a_slow_start_does_not_end_drafting() {
    let model = || executor(&target(), Format::F32, KvDtype::F32);
    let mut executor = SlowAtFirst(DraftingExecutor::new(model(), model()), 0);
    let mut request = requests(&mut Rng::with_seed(1)).remove(0);
    request.sampling = Arc::new(SamplingParams { max_tokens: 400, ..Default::default() });
    let config = SchedulerConfig { speculation: SpeculationMethod::DraftModel, ..Default::default() };
    let (_, seen) = run(&mut executor, &[request], (config, LIMITS.n_blocks), &mut nothing_more);
    assert!(seen.steps < 250 && seen.accepted_draft_tokens > 150, "{seen:?}");
}
