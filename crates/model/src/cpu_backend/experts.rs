//! A routed mixture of experts: rows sorted by expert, so that the weights of an expert are read once for all of its rows; all
//! experts of a projection are one parallel run. Does not know where router logits come from.

use std::ops::Range;

use throng_kernels::matmul::{Activations, Forms, Product, gated_matmul, matmul};
use throng_kernels::reference::softmax;
use throng_kernels::rows;
use throng_kernels::threads::ThreadPool;

use super::{CpuBackend, CpuMatrix};
use crate::backend::host_tensor::HostTensor;
use crate::backend::{Expert, Router};
use crate::config::{Activation, RoutingScore};

/// Which expert computes which row, and the rows in between; buffers are kept from call to call.
#[derive(Debug, Default)]
pub(super) struct ExpertsScratch {
    /// Scores of one row's experts.
    scores: Vec<f32>,
    /// The experts of that row that are not chosen yet, in increasing order, with what they are chosen by.
    free: Vec<(usize, f32)>,
    /// `[rows, n_used]` of (expert, weight), a row's experts in increasing order.
    chosen: Vec<(usize, f32)>,
    /// The first row of each expert among the sorted ones, and the end of the last expert's.
    starts: Vec<usize>,
    /// For each sorted row, its index among the unsorted ones.
    rows: Vec<usize>,
    /// `[rows, n_used]` of (place among the sorted rows, weight).
    terms: Vec<(usize, f32)>,
    /// The rows of each expert that has some, in increasing order of expert.
    activations: Vec<Activations>,
    /// Their hidden activations.
    gated: Vec<Activations>,
    /// The list of a projection's products; empty between calls.
    products: Vec<Product<'static>>,
    sorted: Vec<f32>,
    results: Vec<f32>,
}

impl ExpertsScratch {
    pub(super) fn run(
        &mut self,
        pool: &ThreadPool,
        x: &HostTensor,
        router: Router<'_, CpuBackend>,
        experts: &[Expert<CpuMatrix>],
        activation: Activation,
        out: &mut HostTensor,
    ) {
        let n_used = router.routing.n_used;
        self.route(router);
        self.sort(experts.len(), n_used);
        let n_sorted = x.n_rows() * n_used;
        let hidden = out.cols();

        resize(&mut self.sorted, n_sorted * x.cols());
        rows::gather(x.as_slice(), x.cols(), &self.rows, &mut self.sorted, pool);
        resize(&mut self.results, n_sorted * hidden);
        self.set_hidden(pool, experts, activation, x.cols());
        self.multiply_hidden(pool, experts, hidden);

        rows::weighted_sums(&self.results, hidden, &self.terms, out.as_mut_slice(), pool);
    }

    /// The chosen experts of every row with their weights.
    fn route(&mut self, Router { logits, bias, routing }: Router<'_, CpuBackend>) {
        self.chosen.clear();
        for row_idx in 0..logits.n_rows() {
            self.scores.clear();
            self.scores.extend_from_slice(logits.row(row_idx));
            match routing.score {
                RoutingScore::Softmax => softmax(&mut self.scores),
                RoutingScore::Sigmoid => {
                    self.scores.iter_mut().for_each(|score| *score = 1.0 / (1.0 + (-*score).exp()));
                }
            }
            self.free.clear();
            self.free.extend(self.scores.iter().copied().enumerate());
            if let Some(bias) = bias {
                self.free.iter_mut().zip(bias).for_each(|((_, score), bias)| *score += bias);
            }
            let first = self.chosen.len();
            for _ in 0..routing.n_used {
                let best = self.best();
                let (expert_idx, _) = self.free.remove(best);
                self.chosen.push((expert_idx, self.scores[expert_idx]));
            }
            let chosen = &mut self.chosen[first..];
            if routing.normalize {
                let sum: f32 = chosen.iter().map(|(_, weight)| weight).sum();
                chosen.iter_mut().for_each(|(_, weight)| *weight /= sum);
            }
            if routing.scale != 1.0 {
                chosen.iter_mut().for_each(|(_, weight)| *weight *= routing.scale);
            }
            chosen.sort_unstable_by_key(|(expert_idx, _)| *expert_idx);
        }
    }

    /// The index of the best expert that is not chosen yet: the first of equals.
    fn best(&self) -> usize {
        // A row of NaN must not panic: its results are NaN, too.
        let better =
            |best: usize, other: usize| if self.free[other].1 > self.free[best].1 { other } else { best };
        (0..self.free.len()).reduce(better).expect("no more experts are used than there are")
    }

    /// Sorts the rows by expert; those of one expert stay in order.
    fn sort(&mut self, n_experts: usize, n_used: usize) {
        self.starts.clear();
        self.starts.resize(n_experts + 1, 0);
        for (expert_idx, _) in &self.chosen {
            self.starts[expert_idx + 1] += 1;
        }
        for expert_idx in 0..n_experts {
            self.starts[expert_idx + 1] += self.starts[expert_idx];
        }
        self.rows.clear();
        self.rows.resize(self.chosen.len(), 0);
        self.terms.clear();
        for (i, (expert_idx, weight)) in self.chosen.iter().enumerate() {
            let place = self.starts[*expert_idx];
            self.starts[*expert_idx] += 1;
            self.rows[place] = i / n_used;
            self.terms.push((place, *weight));
        }
        // Each start has moved to its end, which is the next one's start.
        self.starts.rotate_right(1);
        self.starts[0] = 0;
        for rows in [&mut self.activations, &mut self.gated] {
            rows.resize_with(rows.len().max(n_experts), Activations::default);
        }
    }

    /// The hidden activations of all experts, in the forms that the down projections are multiplied with.
    fn set_hidden(
        &mut self,
        pool: &ThreadPool,
        experts: &[Expert<CpuMatrix>],
        activation: Activation,
        cols: usize,
    ) {
        let mut units = emptied(std::mem::take(&mut self.products));
        let mut forms = Forms::default();
        for ((expert, rows), x) in used(experts, &self.starts).zip(&mut self.activations) {
            x.set(&self.sorted[rows.start * cols..rows.end * cols], cols, expert.gate_up.forms(), pool);
            let unit = expert.gate_up.gated_product(x, None, activation).expect("gate and up are two parts");
            units.push(unit);
            forms = forms.and(expert.down.forms());
        }
        gated_matmul(&units, forms, &mut self.gated[..units.len()], pool);
        self.products = emptied(units);
    }

    /// Their products with the down projections, `[sorted rows, stride]`.
    fn multiply_hidden(&mut self, pool: &ThreadPool, experts: &[Expert<CpuMatrix>], stride: usize) {
        let mut products = emptied(std::mem::take(&mut self.products));
        let used = used(experts, &self.starts).zip(&self.gated);
        products.extend(used.flat_map(|((expert, rows), x)| expert.down.products(x, None, rows.start)));
        matmul(&products, &mut self.results, stride, pool);
        self.products = emptied(products);
    }
}

/// The experts that have rows, and which of the sorted ones they are.
fn used<'a>(
    experts: &'a [Expert<CpuMatrix>],
    starts: &'a [usize],
) -> impl Iterator<Item = (&'a Expert<CpuMatrix>, Range<usize>)> {
    let rows = starts.windows(2).map(|range| range[0]..range[1]);
    experts.iter().zip(rows).filter(|(_, rows)| !rows.is_empty())
}

/// The same allocation for products of other lifetimes: collected in place, so that nothing is allocated.
fn emptied<'a>(mut products: Vec<Product<'_>>) -> Vec<Product<'a>> {
    products.clear();
    products.into_iter().map_while(|_| None).collect()
}

fn resize(buffer: &mut Vec<f32>, n: usize) {
    buffer.resize(n, 0.0);
}
