//! Adapters: logits and greedy tokens of transformers with PEFT, in one piece and in chunks, on every
//! backend; sixteen adapters in one batch with the bits that each has alone; and what is refused, by name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::harness::{BACKENDS, Expected, LIMITS, OneSequence};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::Value;
use throng_core::request::{AdapterId, RequestId, SamplingParams, SequenceId};
use throng_core::scheduling::batch::{BlockId, NewSequence, ScheduledBatch, SequenceError, StepOutput};
use throng_kernels::quant::Format;
use throng_model::adapter::{AdapterLimits, LoadedAdapter, RandomAdapter};
use throng_model::runner::RunnerLimits;
use throng_model::{BackendKind, LoadOptions, LoadedModel, RunnerOptions, load};
use throng_testkit::tiny_model::TinyModel;

const PAIRS: [(&str, &str); 2] = [("llama", "llama-r8"), ("qwen3", "qwen3-r4-rslora")];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn open(path: &Path) -> LoadedModel {
    load(path, &LoadOptions { prepare: None, n_threads: 2, quantize: None }, &mut |_| {}).unwrap()
}

#[test]
fn logits_and_greedy_tokens_are_those_of_peft() {
    for (base, adapter) in PAIRS {
        let (model, folder) = (open(&fixtures().join(base)), fixtures().join("adapters").join(adapter));
        let expected = Expected::read(&folder);
        let vocabulary = model.config.vocabulary_size;
        for backend in BACKENDS {
            let loaded = model.load_adapter(backend, &folder, AdapterLimits::default()).unwrap();
            let options = RunnerOptions { backend, n_threads: 2, limits: LIMITS };
            for chunk in [48, 1, 7] {
                let reports =
                    SamplingParams { prompt_logprobs: Some(320), logprobs: Some(320), ..Default::default() };
                let mut runner = model.runner(&options).unwrap();
                let mut rows = expected.logits.chunks(vocabulary);
                let mut worst = 0.0f64;
                let sequence = OneSequence::new(&expected.input_ids, Arc::new(reports));
                sequence.with_adapter(loaded.id).prefill(&mut *runner, chunk, |report| {
                    let logits = rows.next().unwrap();
                    let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
                    assert_eq!(report.top.len(), vocabulary);
                    for top in report.top {
                        let expected = f64::from(logits[top.token as usize]) - sum.ln();
                        worst = worst.max((f64::from(top.logprob) - expected).abs());
                    }
                });
                println!("{adapter} on {backend:?} in chunks of {chunk}: off by {worst:.1e}");
                assert!(rows.next().is_none() && worst < 1e-4, "{adapter} on {backend:?}: {worst}");
            }
            let greedy = SamplingParams { temperature: 0.0, ignore_eos: true, ..Default::default() };
            let mut runner = model.runner(&options).unwrap();
            let mut sequence =
                OneSequence::new(&expected.input_ids, Arc::new(greedy)).with_adapter(loaded.id);
            sequence.prefill(&mut *runner, 48, |_| {});
            sequence.decode(&mut *runner, expected.greedy.len() - 1);
            assert_eq!(sequence.output(), expected.greedy, "{adapter} on {backend:?}");
        }
    }
}

/// The reports' bits of sequences that are prefilled and decoded together, each with its adapter.
fn run(
    model: &LoadedModel,
    options: &RunnerOptions,
    sequences: &[(usize, Option<AdapterId>)],
) -> Vec<Vec<(u32, u32)>> {
    let sampling = Arc::new(SamplingParams { temperature: 0.0, logprobs: Some(0), ..Default::default() });
    let mut runner = model.runner(options).unwrap();
    let (mut batch, mut output) = (ScheduledBatch::default(), StepOutput::default());
    let prompt =
        |idx: usize| -> Vec<u32> { (0..5 + idx as u32 % 4).map(|i| (7 * i + idx as u32) % 64).collect() };
    let mut tokens: Vec<Vec<u32>> = sequences.iter().map(|(idx, _)| prompt(*idx)).collect();
    let mut reports = vec![Vec::new(); sequences.len()];
    let mut starts = vec![0; sequences.len()];
    for _ in 0..6 {
        batch.clear();
        for (i, (idx, adapter)) in sequences.iter().enumerate() {
            batch.push(NewSequence {
                id: SequenceId { request: RequestId(*idx as u64), index: 0 },
                start: starts[i] as u32,
                n_prompt: prompt(*idx).len() as u32,
                next_prompt_token: None,
                sample: true,
                sampling: Arc::clone(&sampling),
                constraint: None,
                adapter: *adapter,
                tokens: &tokens[i][starts[i]..],
                drafts: &[],
                blocks: &[BlockId(i as u32)],
                history: &[],
                output: &[],
            });
        }
        runner.execute(&batch, &mut output).unwrap();
        for i in 0..sequences.len() {
            assert_eq!(output.error(i), None);
            starts[i] = tokens[i].len();
            for report in output.sampled(i) {
                reports[i].push((report.chosen.token, report.chosen.logprob.to_bits()));
                tokens[i].push(report.chosen.token);
            }
        }
    }
    reports
}

#[test]
fn sixteen_adapters_in_a_batch_have_the_bits_of_each_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    for format in [Format::F32, Format::Q8_0] {
        TinyModel { n_layers: 2, ..Default::default() }.write_gguf(format, &path).unwrap();
        let model = open(&path);
        for backend in BACKENDS {
            let adapter = |seed: u64| {
                let random = RandomAdapter { rank: [16, 8, 3][seed as usize % 3], seed };
                model.load_random_adapter(backend, random, AdapterLimits::default()).unwrap()
            };
            let adapters: Vec<LoadedAdapter> = (0..16).map(adapter).collect();
            // Every fourth of twenty has none; two share the first one's prompt and one of them its adapter.
            let mut all: Vec<(usize, Option<AdapterId>)> =
                (0..20).map(|i| (i, (i % 4 < 3).then(|| adapters[i * 3 % 16].id))).collect();
            all.extend([(0, all[0].1), (0, None)]);
            let limits =
                RunnerLimits { n_blocks: 32, max_batch_sequences: 32, max_batch_tokens: 512, ..LIMITS };
            let options = RunnerOptions { backend, n_threads: 2, limits };
            let together = run(&model, &options, &all);
            for (one, together) in all.iter().zip(&together) {
                let alone = run(&model, &options, std::slice::from_ref(one));
                assert_eq!(&alone[0], together, "{one:?} on {backend:?} in {format:?}");
            }
            assert_eq!(together[0], together[20]);
            assert_ne!(together[0], together[21], "an adapter changes results");
        }
    }
}

#[test]
fn a_sequence_without_its_adapter_fails_alone() {
    let model = open(&fixtures().join("llama"));
    let backend = BackendKind::Cpu;
    let random = RandomAdapter { rank: 4, seed: 1 };
    let known = model.load_random_adapter(backend, random, AdapterLimits::default()).unwrap();
    let gone = model.load_random_adapter(backend, random, AdapterLimits::default()).unwrap().id;
    let mut runner = model.runner(&RunnerOptions { backend, n_threads: 1, limits: LIMITS }).unwrap();
    let (mut batch, mut output) = (ScheduledBatch::default(), StepOutput::default());
    for (i, adapter) in [None, Some(gone), Some(known.id)].into_iter().enumerate() {
        batch.push(NewSequence {
            id: SequenceId { request: RequestId(i as u64), index: 0 },
            start: 0,
            n_prompt: 3,
            next_prompt_token: None,
            sample: true,
            sampling: Arc::default(),
            constraint: None,
            adapter,
            tokens: &[1, 2, 3],
            drafts: &[],
            blocks: &[BlockId(i as u32)],
            history: &[],
            output: &[],
        });
    }
    runner.execute(&batch, &mut output).unwrap();
    let errors = [0, 1, 2].map(|i| output.error(i));
    assert_eq!(errors, [None, Some(SequenceError::UnknownAdapter), None]);
}

#[test]
fn limits_hold_and_dropped_adapters_make_room() {
    let model = open(&fixtures().join("llama"));
    let load = |rank: usize, limits: AdapterLimits| {
        model.load_random_adapter(BackendKind::Cpu, RandomAdapter { rank, seed: 1 }, limits)
    };
    let two = AdapterLimits { max_adapters: 2, ..Default::default() };
    let (first, second) = (load(8, two).unwrap(), load(8, two).unwrap());
    assert_ne!(first.id, second.id);
    let error = load(8, two).unwrap_err();
    assert!(error.is_full() && error.to_string().contains("--max-loras"), "{error}");
    drop(first.clone());
    assert!(load(8, two).is_err(), "a clone still holds it");
    let dropped = first.id;
    drop(first);
    assert_ne!(load(8, two).unwrap().id, dropped, "a number is never given twice");
    let error = load(65, two).unwrap_err();
    assert!(!error.is_full() && error.to_string().contains("--max-lora-rank"), "{error}");
    let small = AdapterLimits { max_bytes: second.n_bytes * 3 / 2, ..Default::default() };
    let error = load(8, small).unwrap_err();
    assert!(error.is_full() && error.to_string().contains("--max-lora-memory"), "{error}");
    assert!(!load(64, small).unwrap_err().is_full(), "it never fits");
}

/// A copy of the llama adapter with other fields and tensors.
fn refused(
    edit: impl FnOnce(&mut serde_json::Map<String, Value>, &mut BTreeMap<String, (Vec<usize>, Vec<f32>)>),
) -> String {
    let from = fixtures().join("adapters/llama-r8");
    let mut config =
        serde_json::from_slice(&std::fs::read(from.join("adapter_config.json")).unwrap()).unwrap();
    let bytes = std::fs::read(from.join("adapter_model.safetensors")).unwrap();
    let floats = |data: &[u8]| data.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
    let mut tensors: BTreeMap<_, _> = SafeTensors::deserialize(&bytes)
        .unwrap()
        .tensors()
        .into_iter()
        .map(|(name, view)| (name, (view.shape().to_vec(), floats(view.data()))))
        .collect();
    edit(&mut config, &mut tensors);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("adapter_config.json"), serde_json::to_vec(&config).unwrap()).unwrap();
    let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .into_iter()
        .map(|(name, (shape, data))| (name, shape, data.iter().flat_map(|x| x.to_le_bytes()).collect()))
        .collect();
    let views = bytes.iter().map(|(name, shape, data)| {
        (name, TensorView::new(safetensors::Dtype::F32, shape.clone(), data).unwrap())
    });
    let file = folder.path().join("adapter_model.safetensors");
    std::fs::write(file, safetensors::serialize(views, None).unwrap()).unwrap();
    let model = open(&fixtures().join("llama"));
    let error = model.load_adapter(BackendKind::Cpu, folder.path(), AdapterLimits::default()).unwrap_err();
    assert!(!error.is_full());
    error.to_string()
}

#[test]
fn a_broken_adapter_is_refused_by_the_name_of_its_tensor() {
    const Q: &str = "base_model.model.model.layers.1.self_attn.q_proj";
    let moved = |to: &'static str| {
        refused(move |_, tensors| {
            let tensor = tensors.remove(&format!("{Q}.lora_A.weight")).unwrap();
            tensors.insert(to.to_owned(), tensor);
        })
    };
    let other_half = moved("base_model.model.model.layers.0.self_attn.q_proj.lora_C.weight");
    assert!(other_half.contains("layers.0.self_attn.q_proj.lora_C.weight is no part"), "{other_half}");
    let embedding = moved("base_model.model.model.embed_tokens.lora_A.weight");
    assert!(
        embedding.contains("adapting model.embed_tokens is not supported")
            && embedding.contains("mlp.down_proj")
    );
    let head = moved("base_model.model.lm_head.lora_A.weight");
    assert!(head.contains("adapting lm_head is not supported"), "{head}");
    let layer = moved("base_model.model.model.layers.99.self_attn.q_proj.lora_A.weight");
    assert!(layer.contains("is in layer 99") && layer.contains("another model (llama)"), "{layer}");
    let missing = refused(|_, tensors| drop(tensors.remove(&format!("{Q}.lora_B.weight"))));
    assert!(missing.contains("layers.1.self_attn.q_proj.lora_B.weight is missing"), "{missing}");
    let shape = refused(|_, tensors| {
        tensors.insert(format!("{Q}.lora_B.weight"), (vec![96, 8], vec![0.0; 96 * 8]));
    });
    let says = "q_proj.lora_B.weight: expected shape [64, 8], found [96, 8]: the adapter is of another model (llama)";
    assert!(shape.contains(says), "{shape}");
    let rank = refused(|config, _| drop(config.insert("r".to_owned(), 4.into())));
    assert!(rank.contains("the rank is that of adapter_config.json"), "{rank}");
    let nan = refused(|_, tensors| tensors.get_mut(&format!("{Q}.lora_A.weight")).unwrap().1[5] = f32::NAN);
    assert!(nan.contains("q_proj.lora_A.weight has a number that is not finite"), "{nan}");
    let dora = refused(|config, _| drop(config.insert("use_dora".to_owned(), true.into())));
    assert!(dora.contains("use_dora = true is not supported"), "{dora}");
    let empty = refused(|_, tensors| tensors.clear());
    assert!(empty.contains("no matrices"), "{empty}");
    let model = open(&fixtures().join("llama"));
    let folder = tempfile::tempdir().unwrap();
    let load = || model.load_adapter(BackendKind::Cpu, folder.path(), AdapterLimits::default()).unwrap_err();
    assert!(load().to_string().contains("has no adapter_config.json"));
    std::fs::write(folder.path().join("adapter_config.json"), r#"{"r": 8, "lora_alpha": 8}"#).unwrap();
    std::fs::write(folder.path().join("adapter_model.bin"), "").unwrap();
    assert!(load().to_string().contains("adapter_model.bin is a pickle"));
    std::fs::write(folder.path().join("adapter_model.safetensors"), [7; 40]).unwrap();
    assert!(load().to_string().contains("adapter_model.safetensors: "));
}

/// Names of blocks depend on what an adapter is, not on its number.
#[test]
fn an_adapter_has_one_digest_however_often_it_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    TinyModel { n_layers: 2, ..Default::default() }.write_gguf(Format::F32, &path).unwrap();
    let model = open(&path);
    let load = |backend, rank, seed| {
        model.load_random_adapter(backend, RandomAdapter { rank, seed }, AdapterLimits::default()).unwrap()
    };
    let first = load(BackendKind::Cpu, 8, 1);
    let again = load(BackendKind::Cpu, 8, 1);
    assert_ne!(again.id, first.id);
    assert_eq!(again.digest, first.digest);
    assert_eq!(load(BackendKind::Reference, 8, 1).digest, first.digest);
    for (rank, seed) in [(8, 2), (4, 1)] {
        assert_ne!(load(BackendKind::Cpu, rank, seed).digest, first.digest, "rank {rank}, seed {seed}");
    }
}
