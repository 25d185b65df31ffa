//! Every weight format in a whole model, compared with an independent float64 forward pass on the dequantized
//! weights: with unquantized activations within 1e-3, with quantized ones with a mean error no larger than
//! that of llama.cpp's rounding of activations.
//!
//! For quantized weights, llama.cpp rounds activations to int8, with one scale for 32 elements (Q8_0, for the
//! simple formats) or for 256 (Q8_K, for the K formats and IQ4_XS). Its error is measured here by the same
//! float64 forward pass with that rounding before every product.

use std::sync::Arc;

use crate::harness::{LIMITS, OneSequence};
use fastrand::Rng;
use throng_checkpoint::TensorSource;
use throng_checkpoint::gguf::Gguf;
use throng_core::request::SamplingParams;
use throng_kernels::quant::{Format, dequantize_row};
use throng_model::kv_cache::KvDtype;
use throng_model::runner::RunnerLimits;
use throng_model::{BackendKind, LoadOptions, RunnerOptions, load};
use throng_testkit::tiny_model::TinyModel;

/// How activations are rounded before a product.
#[derive(Clone, Copy, PartialEq)]
enum Rounding {
    None,
    /// To int8 with one scale for this many elements.
    Blocks(usize),
}

impl Rounding {
    fn of_llama_cpp(format: Format) -> Self {
        match format {
            Format::F32 | Format::F16 | Format::BF16 => Self::None,
            // Q8_0.
            Format::NVFP4 => Self::Blocks(32),
            format => Self::Blocks(format.block_elements()),
        }
    }

    fn apply(self, x: &[f64]) -> Vec<f64> {
        let Self::Blocks(n) = self else { return x.to_vec() };
        let round = |block: &[f64]| -> Vec<f64> {
            let scale = block.iter().fold(0.0f64, |most, x| most.max(x.abs())) / 127.0;
            block.iter().map(|x| if scale == 0.0 { 0.0 } else { (x / scale).round() * scale }).collect()
        };
        x.chunks(n).flat_map(round).collect()
    }
}

/// The forward pass of a Qwen 3 in float64.
struct Float64 {
    shape: TinyModel,
    gguf: Gguf,
    rounding: Rounding,
}

impl Float64 {
    fn weights(&self, name: &str) -> Vec<f64> {
        let tensor = self.gguf.tensor(&format!("{name}.weight")).unwrap();
        let mut values = vec![0.0f32; tensor.shape.iter().product()];
        dequantize_row(tensor.format, tensor.data, &mut values);
        values.into_iter().map(f64::from).collect()
    }

    /// Row by row; not used for norms and biases.
    fn multiply(&self, x: &[Vec<f64>], name: &str) -> Vec<Vec<f64>> {
        let weights = self.weights(name);
        let of_row = |x: &Vec<f64>| {
            let x = self.rounding.apply(x);
            weights.chunks(x.len()).map(|w| w.iter().zip(&x).map(|(w, x)| w * x).sum()).collect()
        };
        x.iter().map(of_row).collect()
    }

    fn norm(&self, x: &[f64], name: &str) -> Vec<f64> {
        let mean_square = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        // The file has the epsilon in f32.
        let divisor = (mean_square + f64::from(1e-6f32)).sqrt();
        x.iter().zip(self.weights(name)).map(|(x, gain)| x / divisor * gain).collect()
    }

    /// Normed and rotated heads of queries or keys.
    fn heads(&self, x: &[Vec<f64>], norm: &str) -> Vec<Vec<f64>> {
        let d = self.shape.head_dim;
        let turn = |position: usize, head: &[f64]| -> Vec<f64> {
            let head = self.norm(head, norm);
            let angle = |i: usize| position as f64 * 10_000f64.powf(-2.0 * i as f64 / d as f64);
            let first = (0..d / 2).map(|i| head[i] * angle(i).cos() - head[i + d / 2] * angle(i).sin());
            let second = (0..d / 2).map(|i| head[i + d / 2] * angle(i).cos() + head[i] * angle(i).sin());
            first.chain(second).collect()
        };
        let of_row =
            |(position, x): (usize, &Vec<f64>)| x.chunks(d).flat_map(|head| turn(position, head)).collect();
        x.iter().enumerate().map(of_row).collect()
    }

    fn attend(&self, q: &[Vec<f64>], k: &[Vec<f64>], v: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let d = self.shape.head_dim;
        let one = |position: usize, head: usize| -> Vec<f64> {
            let part = head / (self.shape.n_heads / self.shape.n_kv_heads) * d;
            let q = &q[position][head * d..][..d];
            let score =
                |k: &Vec<f64>| q.iter().zip(&k[part..]).map(|(q, k)| q * k).sum::<f64>() / (d as f64).sqrt();
            let weights: Vec<f64> = k[..=position].iter().map(|k| score(k).exp()).collect();
            let sum: f64 = weights.iter().sum();
            (part..part + d).map(|i| weights.iter().zip(v).map(|(w, v)| w / sum * v[i]).sum()).collect()
        };
        (0..q.len())
            .map(|position| (0..self.shape.n_heads).flat_map(|head| one(position, head)).collect())
            .collect()
    }

    /// Log-probabilities after each of the tokens.
    fn logprobs(&self, tokens: &[u32]) -> Vec<Vec<f64>> {
        let table = self.weights("token_embd");
        let hidden = self.shape.hidden;
        let mut x: Vec<Vec<f64>> =
            tokens.iter().map(|&token| table[token as usize * hidden..][..hidden].to_vec()).collect();
        let normed = |x: &[Vec<f64>], name: &str| x.iter().map(|x| self.norm(x, name)).collect::<Vec<_>>();
        let join = |x: &mut [Vec<f64>], y: &[Vec<f64>]| {
            x.iter_mut().flatten().zip(y.iter().flatten()).for_each(|(x, y)| *x += y);
        };
        for layer in 0..self.shape.n_layers {
            let at = |name: &str| format!("blk.{layer}.{name}");
            let h = normed(&x, &at("attn_norm"));
            let q = self.heads(&self.multiply(&h, &at("attn_q")), &at("attn_q_norm"));
            let k = self.heads(&self.multiply(&h, &at("attn_k")), &at("attn_k_norm"));
            let v = self.multiply(&h, &at("attn_v"));
            join(&mut x, &self.multiply(&self.attend(&q, &k, &v), &at("attn_output")));
            let h = normed(&x, &at("ffn_norm"));
            let (gate, up) = (self.multiply(&h, &at("ffn_gate")), self.multiply(&h, &at("ffn_up")));
            let glu = |(gate, up): (&Vec<f64>, &Vec<f64>)| -> Vec<f64> {
                gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect()
            };
            let inner: Vec<_> = gate.iter().zip(&up).map(glu).collect();
            join(&mut x, &self.multiply(&inner, &at("ffn_down")));
        }
        let logits = self.multiply(&normed(&x, "output_norm"), "output");
        let log_softmax = |logits: Vec<f64>| {
            let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
            logits.into_iter().map(|logit| logit - sum.ln()).collect()
        };
        logits.into_iter().map(log_softmax).collect()
    }
}

/// The 20 most likely tokens of each position with their log-probabilities.
fn most_likely(logprobs: &[Vec<f64>]) -> Vec<(usize, usize, f64)> {
    let of_position = |(position, logprobs): (usize, &Vec<f64>)| {
        let mut ranked: Vec<_> = logprobs.iter().copied().enumerate().collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
        ranked
            .into_iter()
            .take(20)
            .map(move |(token, logprob)| (position, token, logprob))
            .collect::<Vec<_>>()
    };
    logprobs.iter().enumerate().flat_map(of_position).collect()
}

fn distances(exact: &[(usize, usize, f64)], found: &[Vec<f64>]) -> (f64, f64) {
    let distances = exact.iter().map(|(position, token, exact)| (found[*position][*token] - exact).abs());
    let (sum, worst) = distances.fold((0.0, 0.0f64), |(sum, worst), d| (sum + d, worst.max(d)));
    (sum / exact.len() as f64, worst)
}

#[test]
fn every_format_is_within_its_error_bound() {
    let shape = TinyModel { n_layers: 2, feed_forward: 512, vocabulary: 256, ..Default::default() };
    let mut rng = Rng::with_seed(3);
    let tokens: Vec<u32> = (0..32).map(|_| rng.u32(..256)).collect();
    let folder = tempfile::tempdir().unwrap();
    for format in Format::ALL.into_iter().filter(|format| format.ggml_number().is_some()) {
        let path = folder.path().join(format!("{}.gguf", format.name()));
        let bytes = shape.gguf(format);
        std::fs::write(&path, &bytes).unwrap();
        let model =
            load(&path, &LoadOptions { prepare: None, n_threads: 2, quantize: None }, &mut |_| {}).unwrap();
        let float64 = |rounding| {
            Float64 { shape: shape.clone(), gguf: Gguf::parse(&bytes).unwrap(), rounding }.logprobs(&tokens)
        };
        let exact = most_likely(&float64(Rounding::None));
        let run = |backend| {
            let limits = RunnerLimits { kv_dtype: KvDtype::F32, ..LIMITS };
            let mut runner = model.runner(&RunnerOptions { backend, n_threads: 2, limits }).unwrap();
            let sampling =
                SamplingParams { logprobs: Some(256), prompt_logprobs: Some(256), ..Default::default() };
            let mut found = Vec::new();
            OneSequence::new(&tokens, Arc::new(sampling)).prefill(&mut *runner, 32, |report| {
                let mut logprobs = vec![f64::NAN; 256];
                report.top.iter().for_each(|top| logprobs[top.token as usize] = top.logprob.into());
                found.push(logprobs);
            });
            found
        };
        let (_, worst) = distances(&exact, &run(BackendKind::Reference));
        let (ours, ours_worst) = distances(&exact, &run(BackendKind::Cpu));
        let rounding = Rounding::of_llama_cpp(format);
        let (theirs, _) = distances(&exact, &float64(rounding));
        println!(
            "{}: unquantized activations at most {worst:.1e} off; quantized {ours:.5} in the mean (worst {ours_worst:.4}), \
             llama.cpp's rounding {theirs:.5}",
            format.name()
        );
        assert!(worst < 1e-3, "{format:?}: {worst}");
        let bar = if rounding == Rounding::None { 1e-3 } else { theirs };
        assert!(ours <= bar, "{format:?}: {ours} > {bar}");
    }
}
