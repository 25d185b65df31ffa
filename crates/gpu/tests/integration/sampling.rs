//! Tokens that are chosen without a copy of whole rows of logits: the same as the host's sampler chooses from
//! the rows. A failure prints its seed.

use std::sync::Arc;

use fastrand::Rng;
use throng_core::request::{SamplingParams, TokenId};
use throng_core::scheduling::executor::Executor;
use throng_gpu::{Device, GpuBackend};
use throng_kernels::quant::Format;
use throng_model::backend::{Backend, DeviceMemory, NO_TOKEN, SampledRows, SamplingRow, WantedToken};
use throng_model::load::load_bytes;
use throng_model::sampler::{Sampler, SamplingInput};
use throng_model::{LoadOptions, LoadedModel};
use throng_testkit::nightly::{amount, requested};
use throng_testkit::one_sequence::{LIMITS, OneSequence};
use throng_testkit::tiny_model::TinyModel;

use crate::harness::{adapter, backend, fast_device};

/// A request's parameters with the tokens before.
struct Case {
    params: SamplingParams,
    history: Vec<TokenId>,
    n_prompt: u32,
}

impl Case {
    fn random(rng: &mut Rng, width: usize) -> Self {
        let token = |rng: &mut Rng| rng.u32(..width as u32 + 3);
        let tokens = |rng: &mut Rng, n: usize| (0..n).map(|_| token(rng)).collect::<Vec<_>>();
        let mut params = SamplingParams { seed: rng.u64(..), logprobs: None, ..Default::default() };
        params.temperature = *rng.choice(&[0.0, 0.0, 0.4, 1.0, 2.5]).expect("some");
        params.top_k = *rng.choice(&[0, 1, 5, 20, 48, 49, 200]).expect("some");
        params.top_p = *rng.choice(&[1.0, 0.9, 0.3]).expect("some");
        params.min_p = *rng.choice(&[0.0, 0.0, 0.05, 0.5]).expect("some");
        if rng.u32(..3) == 0 {
            params.repetition_penalty = *rng.choice(&[1.0, 1.3, 0.7]).expect("some");
            params.presence_penalty = *rng.choice(&[0.0, 0.5, -1.0]).expect("some");
            params.frequency_penalty = *rng.choice(&[0.0, 0.2]).expect("some");
        }
        if rng.u32(..4) == 0 {
            params.logit_bias = (0..rng.usize(1..5)).map(|_| (token(rng), rng.f32() * 20.0 - 10.0)).collect();
        }
        if rng.u32(..4) == 0 {
            params.bad_words = vec![tokens(rng, 1), tokens(rng, 2)];
        }
        if rng.u32(..4) == 0 {
            (params.min_tokens, params.eos_token_ids) = (rng.u32(..40), tokens(rng, 2));
        }
        if rng.u32(..8) == 0 {
            let n = rng.usize(1..10);
            params.allowed_token_ids = Some(tokens(rng, n));
        }
        let n = rng.usize(..40);
        let history = if params.reads_history() { tokens(rng, n) } else { Vec::new() };
        Self { params, history, n_prompt: rng.u32(..=n as u32) }
    }

    fn input(&self, position: u32) -> SamplingInput<'_> {
        SamplingInput {
            params: &self.params,
            mask: None,
            history: &self.history,
            n_prompt: self.n_prompt,
            sequence_index: 0,
            position: self.n_prompt + position,
        }
    }
}

/// Logits with ties and with numbers that are none.
fn logits(rng: &mut Rng, width: usize) -> Vec<f32> {
    let n_values = *rng.choice(&[2, 40, 1 << 20]).expect("some");
    let mut row: Vec<f32> = (0..width).map(|_| rng.i32(-n_values..n_values) as f32 / 16.0).collect();
    for (one_in, value) in [(40, f32::NAN), (40, f32::INFINITY), (3, f32::NEG_INFINITY), (3, -0.0)] {
        if rng.u32(..one_in) == 0 {
            (0..rng.usize(1..=width.min(9))).for_each(|_| row[rng.usize(..width)] = value);
        }
    }
    if rng.u32(..30) == 0 {
        row.fill(f32::NEG_INFINITY);
    }
    row
}

/// Numbers of rows, of those for the device, and of those whose token differs from the host's.
#[derive(Debug, Default)]
struct Seen {
    rows: usize,
    on_device: usize,
    differ: usize,
}

fn check_rows(backend: &mut GpuBackend, rng: &mut Rng, width: usize, n_rows: usize, seen: &mut Seen) {
    let rows: Vec<Vec<f32>> = (0..n_rows).map(|_| logits(rng, width)).collect();
    let cases: Vec<Case> = (0..n_rows).map(|_| Case::random(rng, width)).collect();
    let mut buffer = backend.buffer(n_rows, width).expect("memory");
    backend.write_rows(&mut buffer, &rows.concat());
    let positions: Vec<u32> = (0..n_rows).map(|_| rng.u32(..60)).collect();
    let all = cases.iter().zip(&positions).enumerate().map(|(row_idx, (case, &position))| SamplingRow {
        row_idx,
        token: WantedToken::Sampled(case.input(position)),
        logprobs: None,
    });
    let of_device: Vec<_> = all.filter(|row| backend.samples(row)).collect();
    backend.sample(&mut buffer, &mut of_device.iter().copied());
    let ticket = backend.submit();
    let mut sampled = SampledRows::default();
    backend.collect(ticket, &mut sampled).expect("the device works");
    let found: Vec<TokenId> = sampled.iter().map(|chosen| chosen.chosen.token).collect();
    assert_eq!(found.len(), of_device.len());
    let mut sampler = Sampler::new();
    for (row, found) in of_device.iter().zip(found) {
        let WantedToken::Sampled(input) = row.token else { unreachable!("all are sampled") };
        let mut own = rows[row.row_idx].clone();
        let expected = sampler.sample(&mut own, &input).map_or(NO_TOKEN, |chosen| chosen.chosen.token);
        seen.differ += usize::from(found != expected);
    }
    (seen.rows, seen.on_device) = (seen.rows + n_rows, seen.on_device + of_device.len());
}

const WIDTHS: [usize; 10] = [1, 7, 63, 64, 65, 300, 1024, 1025, 5000, 70_000];

#[test]
fn tokens_are_those_that_the_host_chooses() {
    let Some(device) = fast_device() else { return };
    let mut backend = backend(&device);
    let first = requested("THRONG_SEED");
    for seed in first.map_or(0..amount(12, 200), |seed| seed..seed + 1) {
        let mut rng = Rng::with_seed(seed);
        let mut seen = Seen::default();
        for width in WIDTHS {
            let n_rows = if width > 5000 { 2 } else { rng.usize(1..12) };
            check_rows(&mut backend, &mut rng, width, n_rows, &mut seen);
            assert_eq!(seen.differ, 0, "THRONG_SEED={seed}: rows of {width}");
        }
        assert!(seen.on_device * 3 > seen.rows, "{seen:?}");
    }
}

#[test]
fn planted_faults_are_noticed() {
    let Some(adapter) = adapter() else { return };
    for (fault, text, replacement) in [
        ("of equal logits the later token", "a.y < b.y", "a.y > b.y"),
        ("negative logits in their order", "return ~bits;", "return bits;"),
        ("a NaN is a number", "magnitude > 0x7f800000u", "magnitude > 0x7fffffffu"),
    ] {
        let device = Device::open_with_edits(&adapter, move |name, source| {
            let edited = source.replace(text, replacement);
            assert!(edited != source || !["largest", "candidates"].contains(&name), "{name} has no {text:?}");
            edited
        });
        let mut backend = backend(&device.expect("it opens"));
        let (mut rng, mut seen) = (Rng::with_seed(7), Seen::default());
        for _ in 0..40 {
            check_rows(&mut backend, &mut rng, 300, 12, &mut seen);
        }
        assert!(seen.differ > 0, "{fault} is not noticed: {seen:?}");
    }
}

fn tiny(vocabulary: usize) -> LoadedModel {
    let options = LoadOptions { prepare: None, n_threads: 1, quantize: None };
    let bytes = TinyModel { vocabulary, ..TinyModel::default() }.gguf(Format::Q8_0);
    load_bytes("tiny", &bytes, &options, &mut |_| {}).expect("the tiny model loads")
}

/// Tokens that a sequence decodes, and the bytes that cross to the host for each.
fn decode(executor: &mut dyn Executor, device: &Device, params: SamplingParams) -> (Vec<u32>, u64) {
    let params = SamplingParams { ignore_eos: true, ..params };
    let mut sequence = OneSequence::new(&[1, 2, 3, 4, 5], Arc::new(params));
    sequence.prefill(executor, 3, |_| {});
    let before = device.downloaded_bytes();
    sequence.decode(executor, 10);
    (sequence.output().to_vec(), (device.downloaded_bytes() - before) / 10)
}

#[test]
fn rows_of_logits_cross_only_where_they_are_needed() {
    let Some(device) = fast_device() else { return };
    let vocabulary = 2048;
    let model = tiny(vocabulary);
    let mut runner = model.runner_with(backend(&device), &LIMITS).expect("it fits");
    let plain = SamplingParams { seed: 5, ..Default::default() };
    let greedy = SamplingParams { temperature: 0.0, ..plain.clone() };
    let row = vocabulary as u64 * 4;
    for (what, params, n_bytes) in [
        ("greedy", greedy.clone(), 8),
        ("top_k", SamplingParams { top_k: 20, top_p: 0.9, ..plain.clone() }, 64 * 8),
        ("all tokens", plain.clone(), row),
        ("log-probabilities", SamplingParams { logprobs: Some(2), ..greedy.clone() }, row),
    ] {
        // The host's sampler answers rows with log-probabilities; they change no token.
        let on_host = SamplingParams { logprobs: Some(0), ..params.clone() };
        let (expected, _) = decode(&mut runner, &device, on_host);
        let (found, crossed) = decode(&mut runner, &device, params);
        assert_eq!(found, expected, "{what}");
        assert_eq!(crossed, n_bytes, "{what}");
    }
    let biased = SamplingParams { logit_bias: vec![(7, 3.0), (9, -2.0)], ..greedy };
    let (_, crossed) = decode(&mut runner, &device, biased);
    assert_eq!(crossed, 64 * 8 + 2 * 4, "rules");
}
