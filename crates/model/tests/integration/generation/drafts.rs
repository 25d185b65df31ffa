//! Drafts do not show: with right and wrong drafts, however many a step verifies, the bits of a request's
//! tokens and log-probabilities are those without drafts. Random drafts and those that are looked up in the
//! tokens run through the real scheduler and the real model, with penalties, constraints, preemptions and
//! prefix hits.
//!
//! A failure prints its seed: `THRONG_SEED=<seed> cargo test -p throng-model --test integration drafts`.

use std::sync::Arc;

use fastrand::Rng;
use throng_checkpoint::gguf::Gguf;
use throng_core::request::{Request, SamplingParams, TokenId};
use throng_core::scheduling::batch::{ScheduledBatch, StepOutput};
use throng_core::scheduling::scheduler::{Counters, SchedulerConfig, SpeculationMethod};
use throng_kernels::Isa;
use throng_kernels::quant::Format;
use throng_model::arch::Architecture;
use throng_model::backend::Backend;
use throng_model::cpu_backend::CpuBackend;
use throng_model::decoder::weights::DecoderWeights;
use throng_model::kv_cache::KvDtype;
use throng_model::reference_backend::ReferenceBackend;
use throng_model::runner::{ModelRunner, RunnerLimits};
use throng_testkit::answers::Answers;
use throng_testkit::paper_constraint::PaperConstraint;
use throng_testkit::tiny_model::TinyModel;

use crate::draft_harness::{LIMITS, VOCABULARY, nothing_more, requests, run};
use crate::models;

/// Each compares all requests.
const N_LOOKUP_SEEDS: u64 = 42;

/// Proposes what the answers without drafts say comes next, with mistakes.
struct Oracle<'a> {
    answers: &'a Answers,
    rng: Rng,
}

impl Oracle<'_> {
    /// The output of a step, with drafts for each sequence that had a token chosen. The drafts of the
    /// executor itself stay.
    fn propose(&mut self, batch: &ScheduledBatch, output: &StepOutput) -> StepOutput {
        let mut with_drafts = StepOutput::default();
        for (sequence_idx, scheduled) in batch.sequences().iter().enumerate() {
            with_drafts.begin_sequence();
            output.prompt(sequence_idx).for_each(|token| with_drafts.push_prompt(token.chosen, token.top));
            output.sampled(sequence_idx).for_each(|token| with_drafts.push_sampled(token.chosen, token.top));
            if let Some(error) = output.error(sequence_idx) {
                with_drafts.fail_sequence(error);
            }
            if !scheduled.sample || self.rng.u32(..4) == 0 {
                output.drafts(sequence_idx).iter().for_each(|&draft| with_drafts.push_draft(draft));
                continue;
            }
            let n_before = scheduled.start as usize + scheduled.n_known() - scheduled.n_prompt as usize;
            let n_output = n_before + output.sampled(sequence_idx).len();
            let next = self.answers.outputs[&scheduled.id].iter().skip(n_output).map(|report| report[0].0);
            let n = self.rng.usize(..8);
            for token in next.chain(std::iter::repeat(0)).take(n) {
                let is_wrong = self.rng.u32(..5) == 0;
                with_drafts.push_draft(if is_wrong { self.rng.u32(..VOCABULARY) } else { token });
            }
        }
        with_drafts
    }
}

fn check<B: Backend>(
    name: &str,
    backend: B,
    (model, format, kv_dtype): (&TinyModel, Format, KvDtype),
    n_seeds: u64,
) -> Counters {
    let gguf = Gguf::parse(&model.gguf(format)).unwrap();
    let architecture = Architecture::from_gguf(gguf.metadata(), &gguf).unwrap();
    let weights = Arc::new(DecoderWeights::load(&backend, &architecture, &gguf, &mut |_| {}).unwrap());
    let limits = RunnerLimits { kv_dtype, ..LIMITS };
    let mut runner = ModelRunner::new(backend, Arc::new(architecture.config), weights, &limits).unwrap();
    let requests = requests(&mut Rng::with_seed(11));
    let without = SchedulerConfig { max_draft_tokens: 0, max_batch_sequences: 1, ..Default::default() };
    let (expected, counters) = run(&mut runner, &requests, (without, LIMITS.n_blocks), &mut nothing_more);
    assert_eq!(counters.draft_tokens, 0);
    let only = std::env::var("THRONG_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    let mut seen = Counters::default();
    for seed in only.map_or(0..n_seeds, |seed| seed..seed + 1) {
        let mut rng = Rng::with_seed(seed);
        let config = SchedulerConfig {
            max_draft_tokens: rng.u32(1..8),
            max_batch_tokens: *rng.choice(&[5, 40, 256]).expect("not empty"),
            max_batch_sequences: rng.u32(2..=12),
            prefix_caching: rng.bool(),
            ..Default::default()
        };
        // The longest sequence takes 5 blocks.
        let n_blocks = if rng.u32(..3) > 0 { rng.u32(5..9) } else { LIMITS.n_blocks };
        let mut oracle = Oracle { answers: &expected, rng: rng.fork() };
        let (answers, counters) = run(&mut runner, &requests, (config, n_blocks), &mut |batch, output| {
            *output = oracle.propose(batch, output)
        });
        assert!(answers == expected, "THRONG_SEED={seed}: an answer differs on {name}");
        seen.draft_tokens += counters.draft_tokens;
        seen.accepted_draft_tokens += counters.accepted_draft_tokens;
        seen.preemptions += counters.preemptions;
        seen.cache_hit_tokens += counters.cache_hit_tokens;
    }
    seen
}

#[test]
fn drafts_do_not_show() {
    let narrow = models::narrow();
    let two_layers = models::two_layers();
    let experts = TinyModel { architecture: "qwen3moe", experts: (8, 2), ..narrow.clone() };
    let models = [
        (&narrow, Format::F32, KvDtype::F32),
        (&two_layers, Format::Q8_0, KvDtype::F16),
        (&experts, Format::Q4_0, KvDtype::BF16),
    ];
    let mut seen = vec![check("reference", ReferenceBackend, models[0], 2)];
    for isa in Isa::available() {
        for model in models {
            let n_seeds = if isa == Isa::best() { 8 } else { 1 };
            seen.push(check(isa.name(), CpuBackend::with_isa(2, isa), model, n_seeds));
        }
    }
    if std::env::var("THRONG_SEED").is_err() {
        let sum = |of: fn(&Counters) -> u64| seen.iter().map(of).sum::<u64>();
        let (drafts, accepted) = (sum(|c| c.draft_tokens), sum(|c| c.accepted_draft_tokens));
        let rejected = drafts - accepted;
        let (preemptions, hits) = (sum(|c| c.preemptions), sum(|c| c.cache_hit_tokens));
        println!("{accepted} accepted, {rejected} rejected, {preemptions} preemptions, {hits} hit tokens");
        assert!(accepted > 1000 && rejected > 1000 && preemptions > 20 && hits > 200);
    }
}

/// Requests whose prompts and outputs repeat themselves.
fn repeating_requests(rng: &mut Rng) -> Vec<Request> {
    let mut all = requests(rng);
    for (i, request) in all.iter_mut().enumerate() {
        let phrase: Vec<TokenId> = (0..rng.usize(2..9)).map(|_| rng.u32(..VOCABULARY)).collect();
        request.prompt = phrase.repeat(if i % 3 == 0 { 1 } else { 4 }).into();
        let mut sampling = SamplingParams { stop_token_ids: vec![], ..(*request.sampling).clone() };
        if i % 2 == 1 && request.constraint.is_none() {
            let first = rng.u32(10..VOCABULARY - 1);
            sampling.allowed_token_ids = Some(vec![first, first + 1]);
        }
        request.sampling = Arc::new(sampling);
    }
    all
}

#[test]
fn looked_up_drafts_do_not_show() {
    let narrow = models::narrow();
    let gguf = Gguf::parse(&narrow.gguf(Format::Q8_0)).unwrap();
    let architecture = Architecture::from_gguf(gguf.metadata(), &gguf).unwrap();
    let backend = CpuBackend::with_isa(2, Isa::best());
    let weights = Arc::new(DecoderWeights::load(&backend, &architecture, &gguf, &mut |_| {}).unwrap());
    let mut runner = ModelRunner::new(backend, Arc::new(architecture.config), weights, &LIMITS).unwrap();
    let only = std::env::var("THRONG_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    let mut seen = Counters::default();
    for seed in only.map_or(0..N_LOOKUP_SEEDS, |seed| seed..seed + 1) {
        let mut rng = Rng::with_seed(seed);
        let requests = repeating_requests(&mut rng);
        let without = SchedulerConfig { max_draft_tokens: 0, max_batch_sequences: 1, ..Default::default() };
        let (expected, _) = run(&mut runner, &requests, (without, LIMITS.n_blocks), &mut nothing_more);
        let config = SchedulerConfig {
            max_draft_tokens: rng.u32(1..17),
            prompt_lookup_min: rng.u32(1..4),
            max_batch_tokens: *rng.choice(&[12, 40, 256]).expect("not empty"),
            max_batch_sequences: rng.u32(1..=12),
            prefix_caching: rng.bool(),
            ..Default::default()
        };
        // The longest sequence takes 5 blocks.
        let n_blocks = if rng.bool() { rng.u32(5..9) } else { LIMITS.n_blocks };
        let (answers, counters) = run(&mut runner, &requests, (config, n_blocks), &mut nothing_more);
        assert!(answers == expected, "THRONG_SEED={seed}: an answer differs");
        seen.draft_tokens += counters.draft_tokens;
        seen.accepted_draft_tokens += counters.accepted_draft_tokens;
        seen.preemptions += counters.preemptions;
    }
    println!("{seen:?}");
    let rejected = seen.draft_tokens - seen.accepted_draft_tokens;
    assert!(only.is_some() || seen.accepted_draft_tokens.min(rejected) > 1000 && seen.preemptions > 50);
}

#[test]
fn what_a_constraint_forces_takes_fewer_steps() {
    let (model, format) = (TinyModel::default(), Format::F32);
    let gguf = Gguf::parse(&model.gguf(format)).unwrap();
    let architecture = Architecture::from_gguf(gguf.metadata(), &gguf).unwrap();
    let backend = ReferenceBackend;
    let weights = Arc::new(DecoderWeights::load(&backend, &architecture, &gguf, &mut |_| {}).unwrap());
    let mut runner = ModelRunner::new(backend, Arc::new(architecture.config), weights, &LIMITS).unwrap();
    let constraint =
        PaperConstraint { vocabulary_size: VOCABULARY, seed: 5, one_in_forced: 1, fails_after: None };
    let mut request = requests(&mut Rng::with_seed(1)).remove(0);
    request.sampling = Arc::new(SamplingParams { max_tokens: 60, ..Default::default() });
    request.constraint = Some(Arc::new(constraint));
    let mut steps = |max_draft_tokens| {
        let speculation = SpeculationMethod::None;
        let config = SchedulerConfig { max_draft_tokens, speculation, ..Default::default() };
        run(&mut runner, std::slice::from_ref(&request), (config, LIMITS.n_blocks), &mut nothing_more)
    };
    let (one_by_one, without) = steps(0);
    let (drafted, with) = steps(8);
    assert_eq!(drafted, one_by_one);
    assert_eq!(without.steps, 60);
    assert!(with.steps < 20 && with.accepted_draft_tokens == with.draft_tokens, "{with:?}");
}
