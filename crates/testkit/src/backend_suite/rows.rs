//! Operations on rows: norms, rotary embedding, gated activations, sums, gates, gathering, logits.

use fastrand::Rng;
use throng_model::backend::{Backend, Columns, Norm};
use throng_model::batch_input::BatchInput;
use throng_model::config::{Activation, RopeStyle, RopeTable};

use super::{Op, batch, buffer, check_op, download, output, random};

/// Results are of the order of 1, and polynomials that approximate `exp` and `tanh` are off by a few units in
/// the last place.
const TOLERANCE: f32 = 2e-6;

#[derive(Debug, Clone, Copy)]
enum Kind {
    RmsNorm,
    LayerNorm,
    NormHeads,
    LayerNormHeads,
    Rope(RopeStyle),
    Glu(Activation),
    /// The activation of a network without gates.
    Activation(Activation),
    Add,
    GateRows,
    GateColumns,
    Gather,
    ScaleAndCap,
    ScaleColumns,
}

struct RowOp {
    kind: Kind,
    n: usize,
    cols: usize,
    x: Vec<f32>,
    y: Vec<f32>,
    gain: Vec<f32>,
}

pub(super) fn check_all<B: Backend>(backends: &mut [B], rng: &mut Rng) {
    let kinds = [
        Kind::RmsNorm,
        Kind::LayerNorm,
        Kind::NormHeads,
        Kind::LayerNormHeads,
        Kind::Rope(RopeStyle::HalfSplit),
        Kind::Rope(RopeStyle::Interleaved),
        Kind::Glu(Activation::Silu),
        Kind::Glu(Activation::GeluTanh),
        Kind::Glu(Activation::Relu),
        Kind::Glu(Activation::Gelu),
        Kind::Activation(Activation::Gelu),
        Kind::Add,
        Kind::GateRows,
        Kind::GateColumns,
        Kind::Gather,
        Kind::ScaleAndCap,
        Kind::ScaleColumns,
    ];
    for kind in kinds {
        for (n, cols) in [(1, 24), (5, 96), (13, 72), (33, 264)] {
            let scale = if matches!(kind, Kind::ScaleAndCap) { 12.0 } else { 1.0 };
            let x = random(rng, n * cols).iter().map(|x| x * scale).collect();
            check_op(
                backends,
                &RowOp { kind, n, cols, x, y: random(rng, n * cols), gain: random(rng, cols) },
            );
        }
    }
}

impl RowOp {
    /// Heads of 12 columns; the first head is left alone.
    fn heads(&self) -> Columns {
        Columns { first: 12, n_groups: self.cols / 12 - 1, width: 12 }
    }

    /// Five pairs: two columns of a head are not rotated.
    fn rope() -> RopeTable {
        let frequencies = (0..5).map(|pair| 0.3_f64.powi(pair)).collect();
        RopeTable { frequencies, amplitude: 1.1, growth: None, sections: Vec::new(), short: None }
    }

    fn positions(items: &[usize]) -> BatchInput {
        let positions = items.iter().map(|&item| (item * 7 + 1) as u32).collect();
        BatchInput { tokens: vec![0; items.len()], positions, ..Default::default() }
    }
}

impl Op for RowOp {
    fn name(&self) -> String {
        format!("{:?} of {} rows of {}", self.kind, self.n, self.cols)
    }

    fn n_items(&self) -> usize {
        self.n
    }

    fn run<B: Backend>(&self, backend: &mut B, items: &[usize]) -> Vec<f32> {
        let mut x = buffer(backend, &self.x, self.cols, items);
        match self.kind {
            Kind::RmsNorm => {
                let mut out = output(backend, items.len(), self.cols);
                let gain = backend.vector(&self.gain).expect("there is memory");
                backend.norm_rows(&x, Norm::rms(&gain, 1e-5), &mut out);
                return download(backend, &mut out);
            }
            Kind::LayerNorm => {
                let mut out = output(backend, items.len(), self.cols);
                let [gain, bias] = [&self.gain, &self.y[..self.cols].to_vec()]
                    .map(|values| backend.vector(values).expect("there is memory"));
                backend.norm_rows(&x, Norm { gain: &gain, bias: Some(&bias), eps: 1e-5 }, &mut out);
                return download(backend, &mut out);
            }
            Kind::NormHeads => {
                let gain = backend.vector(&self.gain[..12]).expect("there is memory");
                backend.norm_columns(&mut x, self.heads(), Norm::rms(&gain, 1e-5));
            }
            Kind::LayerNormHeads => {
                let heads = self.heads();
                let n = heads.n_groups * heads.width;
                let [gain, bias] = [self.gain[..n].to_vec(), self.y[..n].to_vec()]
                    .map(|values| backend.vector(&values).expect("there is memory"));
                backend.norm_columns(&mut x, heads, Norm { gain: &gain, bias: Some(&bias), eps: 1e-5 });
            }
            Kind::ScaleColumns => backend.scale_columns(&mut x, self.heads(), 0.37),
            Kind::Rope(style) => {
                let ropes = [RopeTable { amplitude: 9.0, ..Self::rope() }, Self::rope()];
                let tables = backend.rope_tables(&ropes, 7 * self.n + 1).expect("there is memory");
                let batch = batch(backend, &Self::positions(items));
                backend.rope(&mut x, &batch, &tables, 1, self.heads(), style);
            }
            Kind::Glu(activation) => {
                let mut out = output(backend, items.len(), self.cols / 2);
                backend.glu(&x, activation, &mut out);
                return download(backend, &mut out);
            }
            Kind::Activation(activation) => {
                let mut out = output(backend, items.len(), self.cols);
                backend.glu(&x, activation, &mut out);
                return download(backend, &mut out);
            }
            Kind::Add => {
                let y = buffer(backend, &self.y, self.cols, items);
                backend.add(&mut x, &y, 0.22);
            }
            Kind::GateRows => {
                let gate = buffer(backend, &self.y[..self.n], 1, items);
                backend.gate_rows(&mut x, &gate);
            }
            Kind::GateColumns => {
                let half = self.cols / 2;
                let mut x = buffer(backend, &self.x[..self.n * half], half, items);
                let gates = buffer(backend, &self.y, self.cols, items);
                backend.gate_columns(&mut x, &gates, half);
                return download(backend, &mut x);
            }
            Kind::Gather => {
                let wanted = (0..items.len() as u32).collect();
                let input =
                    BatchInput { tokens: vec![0; items.len()], logit_tokens: wanted, ..Default::default() };
                let batch = batch(backend, &input);
                let mut gathered = Vec::new();
                for first in (0..items.len()).step_by(4) {
                    let wanted = first..items.len().min(first + 4);
                    let mut out = output(backend, wanted.len(), self.cols);
                    backend.gather_logit_rows(&x, &batch, wanted, &mut out);
                    gathered.extend(download(backend, &mut out));
                }
                return gathered;
            }
            Kind::ScaleAndCap => backend.scale_and_cap(&mut x, 0.5, Some(3.0)),
        }
        download(backend, &mut x)
    }

    fn tolerances(&self, reference: &[f32]) -> Vec<f32> {
        let exact = matches!(self.kind, Kind::Gather);
        reference.iter().map(|result| if exact { 0.0 } else { TOLERANCE * result.abs().max(1.0) }).collect()
    }
}
