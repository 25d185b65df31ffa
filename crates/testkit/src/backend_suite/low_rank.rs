//! Low-rank products of several adapters.

use fastrand::Rng;
use throng_kernels::quant::Format;
use throng_model::backend::{Backend, LowRankPart, RowGroups};

use super::{Op, buffer, check_op, download, random};

const STRIDE: usize = 48;

pub(super) fn check_all<B: Backend>(backends: &mut [B], rng: &mut Rng) {
    for format in [Format::F32, Format::BF16] {
        for cols in [32, 80] {
            check_op(backends, &LowRankSum::random(rng, cols, format));
        }
    }
}

/// Rows of three groups and of none.
struct LowRankSum {
    cols: usize,
    format: Format,
    x: Vec<f32>,
    onto: Vec<f32>,
    /// The parts of each group.
    groups: Vec<Vec<Part>>,
}

/// A pair of matrices.
struct Part {
    first_col: usize,
    rank: usize,
    a: Vec<f32>,
    b: Vec<f32>,
}

impl Part {
    fn view(&self) -> LowRankPart<'_> {
        let Self { first_col, rank, a, b } = self;
        LowRankPart { first_col: *first_col, a, b, rank: *rank, scale: 1.5 }
    }
}

impl LowRankSum {
    const N_ROWS: usize = 23;

    fn random(rng: &mut Rng, cols: usize, format: Format) -> Self {
        let shapes: [&[(usize, usize, usize)]; 3] =
            [&[(0, STRIDE, 8)], &[(0, 16, 5), (32, 16, 1)], &[(7, 3, 16)]];
        let mut part = |&(first_col, n_cols, rank): &(usize, usize, usize)| {
            // Exact in bfloat16.
            let mut numbers = |n| random(rng, n).iter().map(|x| (x * 64.0).round() / 64.0).collect();
            let (a, b) = (numbers(rank * cols), numbers(n_cols * rank));
            Part { first_col, rank, a, b }
        };
        let groups = shapes.map(|parts| parts.iter().map(&mut part).collect()).into();
        let (x, onto) = (random(rng, Self::N_ROWS * cols), random(rng, Self::N_ROWS * STRIDE));
        Self { cols, format, x, onto, groups }
    }
}

impl Op for LowRankSum {
    fn name(&self) -> String {
        format!("low-rank products in {:?} of {} columns", self.format, self.cols)
    }

    fn n_items(&self) -> usize {
        Self::N_ROWS
    }

    fn run<B: Backend>(&self, backend: &mut B, items: &[usize]) -> Vec<f32> {
        let x = buffer(backend, &self.x, self.cols, items);
        let mut out = buffer(backend, &self.onto, STRIDE, items);
        let group_of: Vec<Option<usize>> = items.iter().map(|row| Some(row % 4).filter(|g| *g < 3)).collect();
        let mut groups = RowGroups::default();
        groups.set(3, &group_of);
        let matrices: Vec<B::LowRank> = self
            .groups
            .iter()
            .map(|parts| {
                let parts: Vec<_> = parts.iter().map(Part::view).collect();
                backend.low_rank(self.cols, &parts, self.format).expect("there is memory")
            })
            .collect();
        // The second group's adapter does not change this layer in every call.
        let of = |group: usize| matrices.get(group).filter(|_| group != 1 || self.cols > 32);
        backend.add_low_rank(&x, &groups, &of, &mut out);
        download(backend, &mut out)
    }

    /// Sums of f32 in another order.
    fn tolerances(&self, reference: &[f32]) -> Vec<f32> {
        vec![1e-4; reference.len()]
    }
}
