//! Projections and embeddings in every weight format.

use fastrand::Rng;
use throng_checkpoint::TensorView;
use throng_kernels::quant::{Format, dequantize_row, quantize_row};
use throng_kernels::reference;
use throng_model::backend::{Backend, GatedMlp, Linear, MatrixRole, Norm, Scratch};
use throng_model::batch_input::BatchInput;
use throng_model::config::Activation;

use super::{Op, batch, buffer, check_op, download, output, random};

/// Epsilon of the norms.
const EPS: f32 = 1e-5;

/// A stored matrix.
pub(super) struct Stored {
    pub(super) format: Format,
    shape: [usize; 2],
    bytes: Vec<u8>,
    /// Values that the stored bytes represent.
    values: Vec<f32>,
}

impl Stored {
    pub(super) fn random(rng: &mut Rng, format: Format, shape: [usize; 2]) -> Self {
        let mut values = random(rng, shape[0] * shape[1]);
        let mut bytes = vec![0; format.bytes_of(values.len()).expect("rows are whole blocks")];
        quantize_row(format, &values, &mut bytes);
        dequantize_row(format, &bytes, &mut values);
        Self { format, shape, bytes, values }
    }

    pub(super) fn view(&self) -> TensorView<'_> {
        TensorView { name: "weight", shape: &self.shape, format: self.format, data: &self.bytes }
    }
}

pub(super) fn check_all<B: Backend>(backends: &mut [B], rng: &mut Rng) {
    for format in Format::ALL {
        let whole = format.block_elements().max(32);
        for (n, rows, cols) in [(1, 1, whole), (5, 19, 2 * whole), (33, 64, 3 * whole), (70, 33, whole)] {
            let parts = vec![Stored::random(rng, format, [rows, cols])];
            let plain = Projection::random(rng, n, parts, false);
            check_op(backends, &plain);
            let gain = random(rng, cols);
            let normed = Projection { gain: Some(gain.clone()), ..plain };
            check_op(backends, &normed);
            let onto = Some(random(rng, n * rows));
            check_op(backends, &Projection { onto, gain: None, ..normed });
            for (activation, n_parts) in [(Activation::Silu, 2), (Activation::GeluTanh, 1)] {
                // As wide as blocks are, and not a whole number of panels where they may be narrow.
                let width = rows.next_multiple_of(format.block_elements());
                let parts = (0..n_parts).map(|_| Stored::random(rng, format, [2 / n_parts * width, cols]));
                let (parts, adds) = (parts.collect(), n_parts == 2);
                let out = if adds { cols } else { rows };
                let gate_up =
                    Projection { gain: Some(gain.clone()), ..Projection::random(rng, n, parts, adds) };
                let down = Stored::random(rng, format, [out, width]);
                let down_bias = adds.then(|| random(rng, out));
                check_op(backends, &Mlp { gate_up, activation, down, down_bias, adds });
            }
            let table = Stored::random(rng, format, [rows, cols]);
            check_op(
                backends,
                &Embedding { tokens: (0..n as u32).map(|i| i * 7 % rows as u32).collect(), table },
            );
        }
        let parts = [(format, 24), (Format::Q6_K, 40), (Format::F32, 5), (format, 16)];
        let parts = parts.map(|(format, rows)| Stored::random(rng, format, [rows, 512])).into();
        check_op(backends, &Projection::random(rng, 9, parts, true));
    }
    // Odd widths exist only in float formats.
    for format in [Format::F32, Format::F16, Format::BF16] {
        let parts = vec![Stored::random(rng, format, [7, 45])];
        check_op(backends, &Projection::random(rng, 6, parts, true));
    }
}

/// Bound on the error of a dot product of `x` and `w`. Float sums may be in another order, with an error of a
/// hundred-thousandth of the sum of absolute products. For quantized weights, activations may be rounded to
/// signed bytes with one scale a block, with an error of half a step, which is at most a 127th of the block's
/// largest activation.
fn dot_tolerance(x: &[f32], w: &[f32], format: Format) -> f32 {
    let products: f32 = x.iter().zip(w).map(|(x, w)| (x * w).abs()).sum();
    let rounding = match format.is_float() {
        true => 0.0,
        false => {
            let largest = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
            w.iter().map(|w| w.abs()).sum::<f32>() * largest / 254.0
        }
    };
    1e-5 * products + 1.01 * rounding + 1e-6
}

struct Projection {
    n: usize,
    x: Vec<f32>,
    parts: Vec<Stored>,
    bias: Option<Vec<f32>>,
    /// The gain of a norm that is applied first.
    gain: Option<Vec<f32>>,
    /// Rows that the product is added to.
    onto: Option<Vec<f32>>,
}

impl Projection {
    fn random(rng: &mut Rng, n: usize, parts: Vec<Stored>, biased: bool) -> Self {
        let n_out = parts.iter().map(|part| part.shape[0]).sum();
        let bias = biased.then(|| random(rng, n_out));
        Self { n, x: random(rng, n * parts[0].shape[1]), parts, bias, gain: None, onto: None }
    }

    fn cols(&self) -> usize {
        self.parts[0].shape[1]
    }

    fn n_out(&self) -> usize {
        self.parts.iter().map(|part| part.shape[0]).sum()
    }

    fn describe(&self) -> String {
        let parts: Vec<_> = self.parts.iter().map(|part| (part.format, part.shape)).collect();
        let (normed, onto) = (self.gain.is_some(), self.onto.is_some());
        format!("{} rows with {parts:?}, normed {normed}, added to something {onto}", self.n)
    }

    /// The rows that are multiplied.
    fn rows(&self) -> Vec<f32> {
        let mut rows = self.x.clone();
        if let Some(gain) = &self.gain {
            reference::rms_norm(&self.x, gain, EPS, &mut rows);
        }
        rows
    }

    /// Each product with its tolerance.
    fn products(&self) -> Vec<(f32, f32)> {
        let cols = self.cols();
        let rows = self.rows();
        let weights =
            || self.parts.iter().flat_map(|part| part.values.chunks(cols).map(|w| (w, part.format)));
        let of_row = |x: &[f32]| -> Vec<(f32, f32)> {
            let product = |(i, (w, format)): (usize, (&[f32], Format))| {
                let bias = self.bias.as_ref().map_or(0.0, |bias| bias[i]);
                let dot: f32 = x.iter().zip(w).map(|(x, w)| x * w).sum();
                (dot + bias, dot_tolerance(x, w, format))
            };
            weights().enumerate().map(product).collect()
        };
        rows.chunks(cols).flat_map(of_row).collect()
    }
}

impl Op for Projection {
    fn name(&self) -> String {
        format!("matmul of {}", self.describe())
    }

    fn n_items(&self) -> usize {
        self.n
    }

    fn run<B: Backend>(&self, backend: &mut B, items: &[usize]) -> Vec<f32> {
        let x = buffer(backend, &self.x, self.cols(), items);
        let views: Vec<_> = self.parts.iter().map(Stored::view).collect();
        let w = backend.matrix(MatrixRole::RowParallel, &views).expect("every format can be held");
        let bias = self.bias.as_ref().map(|bias| backend.vector(bias).expect("there is memory"));
        let mut out = match &self.onto {
            None => output(backend, items.len(), self.n_out()),
            Some(onto) => buffer(backend, onto, self.n_out(), items),
        };
        match (&self.gain, &self.onto) {
            (None, None) => backend.matmul(&x, &w, bias.as_ref(), &mut out),
            (Some(gain), _) => {
                let gain = backend.vector(gain).expect("there is memory");
                let norm = Norm::rms(&gain, EPS);
                let mut scratch = scratch(backend, items.len(), self.cols(), None);
                backend.norm_matmul(&x, norm, &w, bias.as_ref(), &mut scratch, &mut out);
            }
            (None, Some(_)) => {
                let mut scratch = scratch(backend, items.len(), self.n_out(), None);
                backend.matmul_add(&x, &w, bias.as_ref(), &mut scratch, &mut out);
            }
        }
        download(backend, &mut out)
    }

    fn tolerances(&self, _: &[f32]) -> Vec<f32> {
        self.products().into_iter().map(|(_, tolerance)| tolerance).collect()
    }
}

fn scratch<B: Backend>(backend: &B, n_rows: usize, hidden: usize, width: Option<usize>) -> Scratch<B> {
    Scratch::new(backend, n_rows, hidden, width, true).expect("there is memory")
}

/// Matrices of a network: gate and up stacked in one, and down.
struct Mlp {
    gate_up: Projection,
    activation: Activation,
    down: Stored,
    down_bias: Option<Vec<f32>>,
    /// Whether it is added to its own input.
    adds: bool,
}

impl Mlp {
    /// The hidden activations of each row, and how far they may be off: neither activation function has a
    /// slope of more than 1.13, nor a result further from zero than its argument.
    fn hidden(&self) -> Vec<Vec<(f32, f32)>> {
        let of_row = |row: &[(f32, f32)]| -> Vec<(f32, f32)> {
            let (gates, ups) = row.split_at(row.len() / 2);
            let hidden = |(&(gate, gate_off), &(up, up_off)): (&(f32, f32), &(f32, f32))| {
                let mut value = [gate];
                match self.activation {
                    Activation::Silu => reference::silu_mul(&mut value, &[up]),
                    Activation::GeluTanh => reference::gelu_tanh_mul(&mut value, &[up]),
                    Activation::Gelu => reference::gelu_mul(&mut value, &[up]),
                    Activation::Relu => reference::relu_mul(&mut value, &[up]),
                    Activation::ClampedSwiglu { alpha, limit } => {
                        reference::clamped_swiglu(&mut value, &[up], alpha, limit);
                    }
                }
                (value[0], 1.13 * gate_off * (up.abs() + up_off) + gate.abs() * up_off)
            };
            gates.iter().zip(ups).map(hidden).collect()
        };
        self.gate_up.products().chunks(self.gate_up.n_out()).map(of_row).collect()
    }
}

impl Op for Mlp {
    fn name(&self) -> String {
        let Self { activation, adds, .. } = self;
        let (gate_up, down) = (self.gate_up.describe(), (self.down.format, self.down.shape));
        format!("{activation:?} network of {gate_up} and {down:?}, added to its input {adds}")
    }

    fn n_items(&self) -> usize {
        self.gate_up.n
    }

    fn run<B: Backend>(&self, backend: &mut B, items: &[usize]) -> Vec<f32> {
        let linear = |backend: &mut B, role, parts: &[Stored], bias: &Option<Vec<f32>>| {
            let views: Vec<_> = parts.iter().map(Stored::view).collect();
            let vector = |values: &Vec<f32>| backend.vector(values).expect("there is memory");
            let weight = backend.matrix(role, &views).expect("every format can be held");
            Linear { weight, bias: bias.as_ref().map(vector) }
        };
        let gate_up = linear(backend, MatrixRole::GateUp, &self.gate_up.parts, &self.gate_up.bias);
        let down =
            linear(backend, MatrixRole::RowParallel, std::slice::from_ref(&self.down), &self.down_bias);
        let width = self.down.shape[1];
        let mlp = GatedMlp { width, gate_up, down };
        let gain = self.gate_up.gain.as_ref().map(|gain| backend.vector(gain).expect("there is memory"));
        let norm = gain.as_ref().map(|gain| Norm::rms(gain, EPS));
        let mut x = buffer(backend, &self.gate_up.x, self.gate_up.cols(), items);
        let mut scratch = scratch(backend, items.len(), self.gate_up.cols(), Some(width));
        if self.adds {
            backend.gated_mlp_add(norm, &mlp, self.activation, &mut scratch, &mut x);
            return download(backend, &mut x);
        }
        let mut out = output(backend, items.len(), self.down.shape[0]);
        backend.gated_mlp(&x, norm, &mlp, self.activation, &mut scratch, &mut out);
        download(backend, &mut out)
    }

    fn tolerances(&self, reference: &[f32]) -> Vec<f32> {
        let off = self.hidden().into_iter().flat_map(|row| {
            let (hidden, off): (Vec<f32>, Vec<f32>) = row.into_iter().unzip();
            // Activations that are rounded are at most this large.
            let largest: Vec<f32> = hidden.iter().zip(&off).map(|(x, off)| x.abs() + off).collect();
            let of_row = |w: &[f32]| {
                let carried: f32 = w.iter().zip(&off).map(|(w, off)| w.abs() * off).sum();
                dot_tolerance(&largest, w, self.down.format) + carried
            };
            self.down.values.chunks(self.down.shape[1]).map(of_row).collect::<Vec<_>>()
        });
        off.zip(reference).map(|(off, result)| off + 2e-6 * result.abs()).collect()
    }
}

struct Embedding {
    tokens: Vec<u32>,
    table: Stored,
}

impl Op for Embedding {
    fn name(&self) -> String {
        format!(
            "embedding of {} tokens from {:?} {:?}",
            self.tokens.len(),
            self.table.format,
            self.table.shape
        )
    }

    fn n_items(&self) -> usize {
        self.tokens.len()
    }

    fn run<B: Backend>(&self, backend: &mut B, items: &[usize]) -> Vec<f32> {
        let table =
            backend.matrix(MatrixRole::Embedding, &[self.table.view()]).expect("every format can be held");
        let tokens = items.iter().map(|&item| self.tokens[item]).collect();
        let batch = batch(backend, &BatchInput { tokens, ..Default::default() });
        let mut out = output(backend, items.len(), self.table.shape[1]);
        backend.embed(&table, &batch, 0.75, &mut out);
        download(backend, &mut out)
    }

    /// A product or two, in any order.
    fn tolerances(&self, reference: &[f32]) -> Vec<f32> {
        reference.iter().map(|value| value.abs() * 1e-6).collect()
    }
}
