//! Mixtures of experts, by every way of choosing them, and products of heads with matrices of their own.

use fastrand::Rng;
use throng_checkpoint::TensorView;
use throng_kernels::quant::Format;
use throng_model::backend::{Backend, Expert, HeadColumns, Linear, MatrixRole, Router};
use throng_model::config::{Activation, Routing, RoutingGroups, RoutingScore};

use super::matmul::Stored;
use super::{Op, buffer, check_op, download, output, random};

pub(super) fn check_all<B: Backend>(backends: &mut [B], rng: &mut Rng) {
    for format in [Format::F32, Format::Q8_0, Format::Q4_K] {
        for jitter in [0.01, 0.3] {
            check_op(backends, &Experts::random(rng, format, Routing::sparse_mixer(2, jitter)));
        }
        for normalize in [true, false] {
            let softmax = Routing::softmax(2, normalize);
            check_op(backends, &Experts::random(rng, format, softmax));
            let sigmoid = Routing { score: RoutingScore::Sigmoid, scale: 2.5, ..softmax };
            for is_biased in [true, false] {
                check_op(backends, &Experts::random(rng, format, Routing { is_biased, ..sigmoid }));
                let groups = Some(RoutingGroups { n_groups: 3, n_used: 2, n_summed: 2 });
                check_op(backends, &Experts::random(rng, format, Routing { is_biased, groups, ..sigmoid }));
            }
            for scales_inputs in [true, false] {
                let routing = Routing { has_expert_scales: true, scales_inputs, ..softmax };
                check_op(backends, &Experts::random(rng, format, routing));
            }
        }
    }
    for format in [Format::F32, Format::BF16] {
        check_op(backends, &Heads::random(rng, format));
    }
}

struct Experts {
    x: Vec<f32>,
    router_logits: Vec<f32>,
    router_bias: Vec<f32>,
    router_scales: Vec<f32>,
    /// Gate, up and down matrix of each expert.
    experts: Vec<[Stored; 3]>,
    /// Biases of gate and up, and of down; every other expert has them.
    biases: Vec<Option<[Vec<f32>; 2]>>,
    routing: Routing,
}

impl Experts {
    const WIDTH: usize = 256;
    const N: usize = 6;

    fn random(rng: &mut Rng, format: Format, routing: Routing) -> Self {
        let (width, n_rows) = (Self::WIDTH, 21);
        let expert = |rng: &mut Rng| std::array::from_fn(|_| Stored::random(rng, format, [width, width]));
        let small = |value: f32| value * 0.2;
        Self {
            x: random(rng, n_rows * width).into_iter().map(small).collect(),
            router_logits: random(rng, n_rows * Self::N),
            router_bias: random(rng, Self::N),
            router_scales: random(rng, Self::N),
            experts: (0..Self::N).map(|_| expert(rng)).collect(),
            biases: (0..Self::N)
                .map(|i| (i % 2 == 0).then(|| [random(rng, 2 * width), random(rng, width)]))
                .collect(),
            routing,
        }
    }
}

impl Op for Experts {
    fn name(&self) -> String {
        format!("experts in {:?}, {:?}", self.experts[0][0].format, self.routing)
    }

    fn n_items(&self) -> usize {
        self.x.len() / Self::WIDTH
    }

    fn run<B: Backend>(&self, backend: &mut B, items: &[usize]) -> Vec<f32> {
        let x = buffer(backend, &self.x, Self::WIDTH, items);
        let logits = buffer(backend, &self.router_logits, Self::N, items);
        let matrix = |views: &[TensorView<'_>]| {
            backend.matrix(MatrixRole::Expert, views).expect("every format can be held")
        };
        let vector = |values: &Vec<f32>| backend.vector(values).expect("there is memory");
        let experts = self.experts.iter().zip(&self.biases).map(|([gate, up, down], biases)| {
            let biases = biases.as_ref().map(|[gate_up, down]| (vector(gate_up), vector(down)));
            let (gate_up_bias, down_bias) = biases.unzip();
            Expert {
                gate_up: Linear { weight: matrix(&[gate.view(), up.view()]), bias: gate_up_bias },
                down: Linear { weight: matrix(&[down.view()]), bias: down_bias },
            }
        });
        let scales = vector(&self.router_scales);
        let experts = backend.experts(experts.collect()).expect("there is memory");
        let mut out = output(backend, items.len(), Self::WIDTH);
        let bias =
            self.routing.is_biased.then(|| backend.vector(&self.router_bias).expect("there is memory"));
        let scales = self.routing.has_expert_scales.then_some(&scales);
        let router = Router { logits: &logits, bias: bias.as_ref(), scales, routing: &self.routing };
        backend.mixture_of_experts(&x, router, &experts, Activation::Silu, &mut out);
        download(backend, &mut out)
    }

    /// Tolerances for two successive roundings of activations: a share of the results' size, far below the
    /// error of a wrong expert or weight. Float formats only differ in the order of sums.
    fn tolerances(&self, reference: &[f32]) -> Vec<f32> {
        let size = (reference.iter().map(|r| r * r).sum::<f32>() / reference.len() as f32).sqrt();
        let share = if self.experts[0][0].format == Format::F32 { 1e-4 } else { 0.08 };
        vec![size * share; reference.len()]
    }
}

/// Heads that are copied, multiplied with matrices of their own, and gated.
struct Heads {
    x: Vec<f32>,
    matrices: Vec<Stored>,
}

impl Heads {
    /// Heads are 40 columns apart; 32 of them are multiplied, and 8 copied.
    const STRIDE: usize = 40;
    const COLS: usize = 32;
    const ROWS: usize = 24;
    const N: usize = 5;
    const WIDTH: usize = Self::N * Self::STRIDE;

    fn random(rng: &mut Rng, format: Format) -> Self {
        let matrices = (0..Self::N).map(|_| Stored::random(rng, format, [Self::ROWS, Self::COLS])).collect();
        Self { x: random(rng, 9 * Self::WIDTH), matrices }
    }
}

impl Op for Heads {
    fn name(&self) -> String {
        format!("products of heads in {:?}", self.matrices[0].format)
    }

    fn n_items(&self) -> usize {
        self.x.len() / Self::WIDTH
    }

    fn run<B: Backend>(&self, backend: &mut B, items: &[usize]) -> Vec<f32> {
        let x = buffer(backend, &self.x, Self::WIDTH, items);
        let matrix = |stored: &Stored| backend.matrix(MatrixRole::Router, &[stored.view()]);
        let matrices: Vec<_> =
            self.matrices.iter().map(|stored| matrix(stored).expect("every format can be held")).collect();
        let width = Self::N * (Self::ROWS + 8);
        let mut out = output(backend, items.len(), width);
        let from = |first| HeadColumns { first, stride: Self::STRIDE };
        let to = |first| HeadColumns { first, stride: Self::ROWS + 8 };
        backend.matmul_heads(&x, from(8), &matrices, &mut out, to(8));
        backend.copy_columns(&x, from(0), &mut out, to(0), Self::N, 8);
        let mut gated = output(backend, items.len(), width);
        backend.copy_columns(&out, to(0), &mut gated, to(0), Self::N, Self::ROWS + 8);
        backend.gate_columns(&mut gated, &out, 0);
        download(backend, &mut gated)
    }

    /// Tolerance for sums in another order.
    fn tolerances(&self, reference: &[f32]) -> Vec<f32> {
        reference.iter().map(|r| 1e-4 * r.abs().max(1.0)).collect()
    }
}
