//! EAGLE-3 heads: their drafts are those of an independent implementation, whatever the schedule; a head that
//! cannot be wrong never is; and no answer depends on them.
//!
//! A failure prints its seed: `THRONG_SEED=<seed> cargo test -p throng-model --test integration eagle`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fastrand::Rng;
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize};
use throng_core::request::{Request, RequestId, SamplingParams, SequenceId, TokenId};
use throng_core::scheduling::batch::{BlockId, NewSequence, ScheduledBatch, StepOutput};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_core::scheduling::scheduler::{Counters, SchedulerConfig, SpeculationMethod};
use throng_core::time::Nanos;
use throng_model::drafting::DraftingExecutor;
use throng_model::kv_cache::KvDtype;
use throng_model::load::{EagleHead, LoadError, ModelAndHead, is_eagle_head};
use throng_model::runner::RunnerLimits;
use throng_model::{BackendKind, LoadOptions, LoadedModel, RunnerOptions, load};
use throng_testkit::answers::Answers;

use crate::draft_harness::{LIMITS, nothing_more, requests, run};
use crate::harness::BACKENDS;

const HEADS: [&str; 2] = ["eagle-head", "speculators-head"];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/eagle3").join(name)
}

fn open(folder: &Path) -> LoadedModel {
    load(folder, &LoadOptions { prepare: None, n_threads: 1, quantize: None }, &mut |_| {}).expect("loads")
}

/// The executors of a model and its head.
fn executors(model: &Path, head: &Path, backend: BackendKind) -> ModelAndHead {
    let model = open(model);
    let head = EagleHead::open(head, &model).expect("it is a head of the model");
    let options = RunnerOptions { backend, n_threads: 2, limits: LIMITS };
    model.runner_with_head(&options.threads(), &options, &head, KvDtype::F32).expect("fits")
}

/// Runs tokens of one sequence from `start` on, in blocks out of order. With `n_most` log-probabilities a
/// token is chosen after them.
fn step(
    executor: &mut dyn Executor,
    (tokens, start): (&[TokenId], usize),
    n_most: Option<usize>,
    output: &mut StepOutput,
) {
    let blocks: Vec<_> = (0..8).map(|i| BlockId(i * 7 % 13)).collect();
    let logprobs = n_most.map(|n| n as u32);
    let mut batch = ScheduledBatch::default();
    batch.push(NewSequence {
        id: SequenceId { request: RequestId(1), index: 0 },
        start: start as u32,
        n_prompt: 1,
        next_prompt_token: None,
        sample: n_most.is_some(),
        sampling: Arc::new(SamplingParams { temperature: 0.0, logprobs, ..Default::default() }),
        constraint: None,
        adapter: None,
        tokens,
        drafts: &[],
        blocks: &blocks,
        history: &[],
        output: &[],
    });
    executor.execute(&batch, output).expect("the step succeeds");
}

fn numbers<const N: usize, T>(tensors: &SafeTensors<'_>, name: &str, of: fn([u8; N]) -> T) -> Vec<T> {
    let tensor = tensors.tensor(name).expect(name);
    tensor.data().as_chunks::<N>().0.iter().map(|bytes| of(*bytes)).collect()
}

/// Tolerance: the heads are computed in f32 here, in float64 there.
const TOLERANCE: f32 = 2e-4;

#[test]
fn drafts_are_those_of_an_independent_implementation() {
    for name in HEADS {
        let bytes = std::fs::read(fixture(name).join("expected.safetensors")).expect("a fixture");
        let expected = SafeTensors::deserialize(&bytes).expect("valid");
        let ids = |name| numbers(&expected, name, u32::from_le_bytes);
        let (tokens, lengths, drafts) = (ids("input_ids"), ids("lengths"), ids("drafts"));
        let logprobs = numbers(&expected, "logprobs", f32::from_le_bytes);
        let n_drafts = drafts.len() / lengths.len();
        let n_tokens = logprobs.len() / drafts.len();
        for backend in BACKENDS {
            for chunk in [40, 7, 1] {
                let ModelAndHead { mut model, mut head } =
                    executors(&fixture("model"), &fixture(name), backend);
                let mut output = StepOutput::default();
                for start in (0..tokens.len()).step_by(chunk) {
                    let end = tokens.len().min(start + chunk);
                    step(&mut *model, (&tokens[start..end], start), None, &mut output);
                }
                // What the head reads of a prefix is overwritten by what it drafts after it: the longest goes first.
                for (i, &length) in lengths.iter().enumerate().rev() {
                    let mut known = tokens[..length as usize].to_vec();
                    let mut start = 0;
                    for end in (0..known.len()).step_by(chunk).skip(1).chain([known.len()]) {
                        let n_most = (end == known.len()).then_some(n_tokens);
                        step(&mut *head, (&known[start..end], start), n_most, &mut output);
                        start = end;
                    }
                    for j in 0..n_drafts {
                        let what = format!(
                            "{name} on {backend:?}, draft {j} after {length} tokens, chunks of {chunk}"
                        );
                        let report = output.sampled(0).next().expect("a guess");
                        assert_eq!(report.chosen.token, drafts[i * n_drafts + j], "{what}");
                        let mut all: Vec<_> = report.top.iter().map(|top| (top.token, top.logprob)).collect();
                        all.sort_by_key(|(token, _)| *token);
                        let wanted = logprobs[(i * n_drafts + j) * n_tokens..][..n_tokens].iter();
                        let worst =
                            all.iter().zip(wanted).map(|((_, a), b)| (a - b).abs()).fold(0.0, f32::max);
                        assert!(all.len() == n_tokens && worst < TOLERANCE, "{what}: off by {worst}");
                        known.push(report.chosen.token);
                        let last = known.len() - 1;
                        step(&mut *head, (&known[last..], last), Some(n_tokens), &mut output);
                    }
                }
            }
        }
    }
}

/// A model whose head's passes take no time, so that drafts are always worth it. Notes where which drafts
/// were made.
struct Watched {
    inner: DraftingExecutor,
    /// The sequence, how many of its tokens were known, and the drafts.
    seen: Vec<(SequenceId, usize, Vec<TokenId>)>,
}

impl Watched {
    fn new(model: &Path, head: &Path) -> Self {
        Self { inner: executors(model, head, BackendKind::Cpu).drafting(), seen: Vec::new() }
    }
}

impl Executor for Watched {
    fn capacity(&self) -> ExecutorCapacity {
        self.inner.capacity()
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        self.inner.execute(batch, output)?;
        output.draft_passes.iter_mut().for_each(|pass| pass.took = Nanos(1_000));
        for (i, scheduled) in batch.sequences().iter().enumerate() {
            let n_known = scheduled.start as usize + scheduled.n_known();
            let drafts = output.own_drafts(i);
            if !drafts.is_empty() {
                self.seen.push((scheduled.id, n_known, drafts.to_vec()));
            }
        }
        Ok(())
    }
}

fn one_by_one(model: &Path, requests: &[Request]) -> Answers {
    let options = RunnerOptions { backend: BackendKind::Cpu, n_threads: 2, limits: LIMITS };
    let mut model = open(model).runner(&options).expect("fits");
    let config = SchedulerConfig { max_draft_tokens: 0, max_batch_sequences: 1, ..Default::default() };
    run(&mut *model, requests, (config, LIMITS.n_blocks), &mut nothing_more).0
}

/// A configuration, and a number of blocks that forces preemptions in some runs.
fn configuration(rng: &mut Rng) -> (SchedulerConfig, u32) {
    let config = SchedulerConfig {
        max_draft_tokens: rng.u32(1..7),
        speculation: SpeculationMethod::DraftModel,
        max_batch_tokens: *rng.choice(&[7, 40, 256]).expect("not empty"),
        max_batch_sequences: rng.u32(1..=12),
        prefix_caching: rng.bool(),
        ..Default::default()
    };
    (config, if rng.bool() { rng.u32(5..8) } else { LIMITS.n_blocks })
}

fn seeds(n: u64) -> std::ops::Range<u64> {
    let only = std::env::var("THRONG_SEED").ok().map(|seed| seed.parse::<u64>().expect("a number"));
    only.map_or(0..n, |seed| seed..seed + 1)
}

/// What the head drafts greedily after these tokens, when nothing was computed before.
fn fresh_drafts(executors: &mut ModelAndHead, tokens: &[TokenId], n: usize) -> Vec<TokenId> {
    let (mut output, mut known) = (StepOutput::default(), tokens.to_vec());
    step(&mut *executors.model, (&known[..known.len() - 1], 0), None, &mut output);
    let mut start = 0;
    for _ in 0..n {
        step(&mut *executors.head, (&known[start..], start), Some(0), &mut output);
        start = known.len();
        known.push(output.sampled(0).next().expect("a guess").chosen.token);
    }
    known.split_off(tokens.len())
}

#[test]
fn neither_answers_nor_drafts_depend_on_the_schedule() {
    let model = fixture("model");
    let (mut n_compared, mut all) = (0, Counters::default());
    for name in HEADS {
        let mut fresh = executors(&model, &fixture(name), BackendKind::Cpu);
        let mut watched = Watched::new(&model, &fixture(name));
        for seed in seeds(4) {
            let mut rng = Rng::with_seed(seed);
            let requests = requests(&mut rng);
            let expected = one_by_one(&model, &requests);
            let (answers, counters) =
                run(&mut watched, &requests, configuration(&mut rng), &mut nothing_more);
            assert!(answers == expected, "THRONG_SEED={seed}: an answer differs with {name}");
            for (id, n_known, drafts) in watched.seen.drain(..).step_by(2) {
                let request = &requests[id.request.0 as usize];
                // Those of sampled and constrained requests are not the head's most likely tokens.
                if request.sampling.temperature > 0.0 || request.constraint.is_some() {
                    continue;
                }
                let mut tokens = request.prompt.to_vec();
                tokens.extend(expected.outputs[&id].iter().map(|report| report[0].0));
                let wanted = fresh_drafts(&mut fresh, &tokens[..n_known], drafts.len());
                assert_eq!(drafts, wanted, "THRONG_SEED={seed}: {id} after {n_known} tokens with {name}");
                n_compared += 1;
            }
            all.preemptions += counters.preemptions;
            all.cache_hit_tokens += counters.cache_hit_tokens;
        }
    }
    println!("{n_compared} compared, {all:?}");
    if std::env::var("THRONG_SEED").is_err() {
        assert!(
            n_compared > 150 && all.preemptions > 3 && all.cache_hit_tokens > 500,
            "{n_compared}, {all:?}"
        );
    }
}

/// Tokens and width of [`write_certain`].
const N: usize = 64;

/// What the model of [`write_certain`] answers a token with.
fn next(token: usize) -> usize {
    (5 * token + 3) % N
}

/// Writes a model that answers each token with [`next`], whatever stands before, and a head that knows this.
/// The embedding of a token is a unit vector; the model's layers add nothing, and the head's replaces a
/// token's vector by that of the token after it.
fn write_certain(folder: &Path) -> (PathBuf, PathBuf) {
    let matrix = |at: &dyn Fn(usize, usize) -> f32, rows: usize, cols: usize| -> (Vec<usize>, Vec<f32>) {
        (vec![rows, cols], (0..rows * cols).map(|i| at(i / cols, i % cols)).collect())
    };
    let zeros = |rows, cols| matrix(&|_, _| 0.0, rows, cols);
    let scaled = |scale: f32| matrix(&move |row, col| if row == col { scale } else { 0.0 }, N, N);
    let ones = (vec![N], vec![1.0f32; N]);
    // After a norm a unit vector is 8 times as long. Logits are so far apart that sampling finds one token.
    let answer = matrix(&|row, col| if row == next(col) { 10.0 } else { 0.0 }, N, N);
    let config = r#""model_type":"llama","hidden_size":64,"num_attention_heads":2,"num_key_value_heads":1,"head_dim":16,
        "intermediate_size":64,"vocab_size":64,"rms_norm_eps":1e-12"#;

    let mut of_model = BTreeMap::from([
        ("model.embed_tokens.weight".to_owned(), scaled(1.0)),
        ("lm_head.weight".to_owned(), answer),
        ("model.norm.weight".to_owned(), ones.clone()),
    ]);
    let silent = |tensors: &mut BTreeMap<String, _>, layer: &str, cols: usize| {
        for (name, rows) in [("q", 32), ("k", 16), ("v", 16)] {
            tensors.insert(format!("{layer}self_attn.{name}_proj.weight"), scaled_rows(rows, cols));
        }
        for (name, shape) in [("self_attn.o_proj", (N, 32)), ("mlp.down_proj", (N, N))] {
            tensors.insert(format!("{layer}{name}.weight"), zeros(shape.0, shape.1));
        }
        for name in ["mlp.gate_proj", "mlp.up_proj"] {
            tensors.insert(format!("{layer}{name}.weight"), scaled(1.0));
        }
        for name in ["input_layernorm", "post_attention_layernorm"] {
            tensors.insert(format!("{layer}{name}.weight"), ones.clone());
        }
    };
    for layer_idx in 0..4 {
        silent(&mut of_model, &format!("model.layers.{layer_idx}."), N);
    }
    let mut of_head = BTreeMap::new();
    silent(&mut of_head, "midlayer.", 2 * N);
    // silu(8) · 8 for the token's own element.
    let hidden = 64.0 / (1.0 + (-8.0f32).exp());
    let replace = matrix(&|row, col| (f32::from(row == next(col)) - f32::from(row == col)) / hidden, N, N);
    of_head.insert("midlayer.mlp.down_proj.weight".to_owned(), replace);
    of_head.insert("midlayer.hidden_norm.weight".to_owned(), ones.clone());
    of_head.insert("norm.weight".to_owned(), ones);
    // The sum of the three layers' states, which are all the same.
    of_head.insert(
        "fc.weight".to_owned(),
        matrix(&|row, col| if row == col % N { 1.0 / 3.0 } else { 0.0 }, N, 3 * N),
    );
    of_head.insert(
        "lm_head.weight".to_owned(),
        matrix(&|row, col| if row == next(col) { 10.0 } else { 0.0 }, N, N),
    );
    let places = ["certain", "certain-head"].map(|name| folder.join(name));
    for (place, tensors, more) in [
        (&places[0], &of_model, r#""num_hidden_layers":4"#),
        (&places[1], &of_head, r#""num_hidden_layers":1,"architectures":["LlamaForCausalLMEagle3"]"#),
    ] {
        std::fs::create_dir(place).expect("a new folder");
        std::fs::write(place.join("config.json"), format!("{{{config},{more}}}")).expect("it can be written");
        write(&place.join("model.safetensors"), tensors);
    }
    let [model, head] = places;
    (model, head)
}

fn scaled_rows(rows: usize, cols: usize) -> (Vec<usize>, Vec<f32>) {
    (vec![rows, cols], (0..rows * cols).map(|i| f32::from((i * 7 % 11) as u8) / 50.0).collect())
}

fn write(path: &Path, tensors: &BTreeMap<String, (Vec<usize>, Vec<f32>)>) {
    let bytes: Vec<Vec<u8>> = tensors
        .values()
        .map(|(_, values)| values.iter().flat_map(|value| value.to_le_bytes()).collect())
        .collect();
    let views = tensors.iter().zip(&bytes).map(|((name, (shape, _)), bytes)| {
        (name, TensorView::new(Dtype::F32, shape.clone(), bytes).expect("whole"))
    });
    std::fs::write(path, serialize(views, None).expect("valid")).expect("it can be written");
}

#[test]
fn a_head_that_knows_the_model_is_never_wrong() {
    let folder = tempfile::tempdir().expect("a folder");
    let (model, head) = write_certain(folder.path());
    let mut watched = Watched::new(&model, &head);
    let mut seen = Counters::default();
    for seed in seeds(4) {
        let mut rng = Rng::with_seed(seed);
        let mut requests = requests(&mut rng);
        for request in &mut requests {
            // Neither penalties nor constraints nor an end let the model answer otherwise.
            let of = &request.sampling;
            let sampling = SamplingParams {
                temperature: of.temperature,
                seed: of.seed,
                max_tokens: of.max_tokens,
                logprobs: of.logprobs,
                ..Default::default()
            };
            (request.sampling, request.constraint) = (Arc::new(sampling), None);
            // The head reads what stands before a token, and takes the token to be the one that follows.
            let chain = std::iter::successors(request.prompt.first().copied(), |&token| {
                Some(next(token as usize) as u32)
            });
            request.prompt = chain.take(request.prompt.len()).collect();
        }
        let expected = one_by_one(&model, &requests);
        let (answers, counters) = run(&mut watched, &requests, configuration(&mut rng), &mut nothing_more);
        assert!(answers == expected, "THRONG_SEED={seed}: an answer differs");
        assert_eq!(
            counters.accepted_draft_tokens, counters.draft_tokens,
            "THRONG_SEED={seed}: a wrong draft"
        );
        seen.draft_tokens += counters.draft_tokens;
        seen.preemptions += counters.preemptions;
    }
    println!("{seen:?}");
    assert!(seen.draft_tokens > 500 || std::env::var("THRONG_SEED").is_ok(), "{seen:?}");
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let model = open(&fixture("model"));
    assert!(is_eagle_head(&fixture("eagle-head")).expect("readable"));
    assert!(is_eagle_head(&fixture("speculators-head")).expect("readable"));
    assert!(!is_eagle_head(&fixture("model")).expect("readable"));
    let refusal = |head: &Path| -> String {
        let opened = EagleHead::open(head, &model).and_then(|head| {
            let limits = RunnerLimits { kv_dtype: KvDtype::F32, ..LIMITS };
            let options = RunnerOptions { backend: BackendKind::Reference, n_threads: 1, limits };
            model.runner_with_head(&options.threads(), &options, &head, KvDtype::F32).map(drop)
        });
        let error: LoadError = opened.expect_err("refused");
        error.to_string()
    };
    let folder = tempfile::tempdir().expect("a folder");
    let (_, other) = write_certain(folder.path());
    assert!(refusal(&other).contains("the EAGLE-3 head is of another model"), "{}", refusal(&other));
    let copy = folder.path().join("copy");
    std::fs::create_dir(&copy).expect("a new folder");
    let config = std::fs::read_to_string(fixture("eagle-head").join("config.json")).expect("a fixture");
    std::fs::copy(fixture("eagle-head").join("model.safetensors"), copy.join("model.safetensors"))
        .expect("copied");
    for (from, to, words) in [
        ("\"draft_vocab_size\": 24", "\"draft_vocab_size\": 25", "lm_head.weight: expected shape [25, 32]"),
        ("\"intermediate_size\": 48", "\"intermediate_size\": 40", "mlp.gate_proj.weight"),
        ("\"num_hidden_layers\": 1", "\"num_hidden_layers\": 2", "num_hidden_layers"),
    ] {
        assert!(config.contains(from));
        std::fs::write(copy.join("config.json"), config.replace(from, to)).expect("written");
        assert!(refusal(&copy).contains(words), "{}", refusal(&copy));
    }
}
