//! A routed mixture of experts: rows sorted by expert, so that the weights of an expert are read once for all
//! of its rows; all experts of a projection are one parallel run. Does not know where router logits come
//! from.

use std::ops::Range;

use throng_kernels::matmul::{Activations, Forms, Product, gated_matmul, matmul};
use throng_kernels::reference::softmax;
use throng_kernels::rows;
use throng_kernels::threads::ThreadPool;

use super::CpuBackend;
use super::heads::emptied;
use crate::backend::host_tensor::HostTensor;
use crate::backend::{Expert, Linear, Router};
use crate::config::{Activation, RoutingGroups, RoutingScore};

/// Assignment of rows to experts, and the rows in between; buffers are kept from call to call.
#[derive(Debug, Default)]
pub(super) struct ExpertsScratch {
    /// Scores of one row's experts.
    scores: Vec<f32>,
    /// Experts of that row that are not chosen yet, in increasing order, with their scores.
    free: Vec<(usize, f32)>,
    /// Scores of that row's groups of experts; `None` for excluded groups.
    groups: Vec<Option<f32>>,
    /// Scores of one group, the best first.
    best: Vec<f32>,
    /// `[rows, n_used]` of (expert, weight), a row's experts in increasing order.
    chosen: Vec<(usize, f32)>,
    /// The first row of each expert among the sorted ones, and the end of the last expert's.
    starts: Vec<usize>,
    /// Index among the unsorted rows, for each sorted one.
    rows: Vec<usize>,
    /// `[rows, n_used]` of (place among the sorted rows, weight).
    terms: Vec<(usize, f32)>,
    /// The rows of each expert that has some, in increasing order of expert.
    activations: Vec<Activations>,
    /// Hidden activations of the experts.
    gated: Vec<Activations>,
    /// The list of a projection's products; empty between calls.
    products: Vec<Product<'static>>,
    sorted: Vec<f32>,
    /// Products of gate and up where they are not fused, `[sorted rows, 2 * width]`, and the hidden
    /// activations.
    gates: Vec<f32>,
    hidden: Vec<f32>,
    results: Vec<f32>,
}

impl ExpertsScratch {
    pub(super) fn run(
        &mut self,
        pool: &ThreadPool,
        x: &HostTensor,
        router: Router<'_, CpuBackend>,
        experts: &[Expert<CpuBackend>],
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
        if router.routing.scales_inputs {
            self.scale_inputs(x.cols());
        }
        resize(&mut self.results, n_sorted * hidden);
        self.set_hidden(pool, experts, activation, x.cols());
        self.multiply_hidden(pool, experts, hidden);

        rows::weighted_sums(&self.results, hidden, &self.terms, out.as_mut_slice(), pool);
    }

    /// The chosen experts of every row with their weights.
    fn route(&mut self, Router { logits, bias, scales, routing }: Router<'_, CpuBackend>) {
        self.chosen.clear();
        for row_idx in 0..logits.n_rows() {
            self.scores.clear();
            self.scores.extend_from_slice(logits.row(row_idx));
            match routing.score {
                RoutingScore::Softmax => softmax(&mut self.scores),
                RoutingScore::Sigmoid => {
                    self.scores.iter_mut().for_each(|score| *score = 1.0 / (1.0 + (-*score).exp()));
                }
                RoutingScore::SparseMixer { .. } => {}
            }
            self.free.clear();
            self.free.extend(self.scores.iter().copied().enumerate());
            if let Some(bias) = bias {
                self.free.iter_mut().zip(bias).for_each(|((_, score), bias)| *score += bias);
            }
            if let Some(groups) = routing.groups {
                self.keep_best_groups(groups);
            }
            let first = self.chosen.len();
            for _ in 0..routing.n_used {
                let best = self.best();
                let near = match routing.score {
                    RoutingScore::SparseMixer { jitter } => Some(self.weight_among_near(best, jitter)),
                    RoutingScore::Softmax | RoutingScore::Sigmoid => None,
                };
                let (expert_idx, _) = self.free.remove(best);
                self.chosen.push((expert_idx, near.unwrap_or(self.scores[expert_idx])));
            }
            let chosen = &mut self.chosen[first..];
            if routing.normalize {
                let sum: f32 = chosen.iter().map(|(_, weight)| weight).sum();
                chosen.iter_mut().for_each(|(_, weight)| *weight /= sum);
            }
            if let Some(scales) = scales {
                chosen.iter_mut().for_each(|(expert_idx, weight)| *weight *= scales[*expert_idx]);
            }
            if routing.scale != 1.0 {
                chosen.iter_mut().for_each(|(_, weight)| *weight *= routing.scale);
            }
            chosen.sort_unstable_by_key(|(expert_idx, _)| *expert_idx);
        }
    }

    /// Leaves the experts of the best groups: those with the largest sums of their best experts, the first of
    /// equal ones.
    fn keep_best_groups(&mut self, groups: RoutingGroups) {
        let size = self.free.len() / groups.n_groups;
        self.groups.clear();
        for group in self.free.chunks(size) {
            self.best.clear();
            self.best.extend(group.iter().map(|(_, score)| *score));
            self.best.sort_unstable_by(|a, b| b.total_cmp(a));
            self.groups.push(Some(self.best[..groups.n_summed].iter().sum()));
        }
        for _ in groups.n_used..groups.n_groups {
            let score = |group: usize| self.groups[group].unwrap_or(f32::INFINITY);
            let worse = |worst: usize, other: usize| if score(other) <= score(worst) { other } else { worst };
            let worst = (0..groups.n_groups).reduce(worse).expect("there is a group");
            self.groups[worst] = None;
        }
        let Self { free, groups, .. } = self;
        free.retain(|(expert_idx, _)| groups[*expert_idx / size].is_some());
    }

    /// The index of the best expert that is not chosen yet: the first of equals.
    fn best(&self) -> usize {
        // A row of NaN must not panic: its results are NaN, too.
        let better =
            |best: usize, other: usize| if self.free[other].1 > self.free[best].1 { other } else { best };
        (0..self.free.len()).reduce(better).expect("no more experts are used than there are")
    }

    /// The softmax of the best expert among those that are not chosen yet and near it
    /// ([`RoutingScore::SparseMixer`]).
    fn weight_among_near(&self, best: usize, jitter: f32) -> f32 {
        let most = self.free[best].1;
        let is_far = |logit: f32| (most - logit) / logit.abs().max(most) > 2.0 * jitter;
        let near = self.free.iter().map(|(_, logit)| *logit).filter(|logit| !is_far(*logit));
        1.0 / near.map(|logit| (logit - most).exp()).sum::<f32>()
    }

    /// Sorts the rows by expert; those of one expert keep their order.
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

    /// Multiplies the sorted rows with their weights, which then are 1.
    fn scale_inputs(&mut self, cols: usize) {
        for (place, weight) in &mut self.terms {
            let row = &mut self.sorted[*place * cols..][..cols];
            row.iter_mut().for_each(|x| *x *= *weight);
            *weight = 1.0;
        }
    }

    /// The hidden activations of all experts, in the forms that the down projections are multiplied with.
    fn set_hidden(
        &mut self,
        pool: &ThreadPool,
        experts: &[Expert<CpuBackend>],
        activation: Activation,
        cols: usize,
    ) {
        for ((expert, rows), x) in used(experts, &self.starts).zip(&mut self.activations) {
            let rows = &self.sorted[rows.start * cols..rows.end * cols];
            x.set(rows, cols, expert.gate_up.weight.forms(), pool);
        }
        let mut units = emptied(std::mem::take(&mut self.products));
        let mut forms = Forms::default();
        let mut n_used = 0;
        for ((expert, _), x) in used(experts, &self.starts).zip(&self.activations) {
            let Linear { weight, bias } = &expert.gate_up;
            units.extend(weight.gated_product(x, bias.as_deref(), activation));
            forms = forms.and(expert.down.weight.forms());
            n_used += 1;
        }
        let are_fused = units.len() == n_used;
        if are_fused {
            gated_matmul(&units, forms, &mut self.gated[..n_used], pool);
        }
        self.products = emptied(units);
        if !are_fused {
            self.set_unfused_hidden(pool, experts, activation);
        }
    }

    /// Computes the hidden activations in single operations, if gate and up are no fused product.
    fn set_unfused_hidden(
        &mut self,
        pool: &ThreadPool,
        experts: &[Expert<CpuBackend>],
        activation: Activation,
    ) {
        let (n_sorted, width) = (self.rows.len(), experts[0].down.weight.cols());
        resize(&mut self.gates, n_sorted * 2 * width);
        resize(&mut self.hidden, n_sorted * width);
        let mut products = emptied(std::mem::take(&mut self.products));
        for ((expert, rows), x) in used(experts, &self.starts).zip(&self.activations) {
            let Linear { weight, bias } = &expert.gate_up;
            products.extend(weight.products(x, bias.as_deref(), rows.start));
        }
        matmul(&products, &mut self.gates, 2 * width, pool);
        self.products = emptied(products);
        rows::glu(&self.gates, width, activation, &mut self.hidden, pool);
        for ((expert, rows), x) in used(experts, &self.starts).zip(&mut self.gated) {
            let rows = &self.hidden[rows.start * width..rows.end * width];
            x.set(rows, width, expert.down.weight.forms(), pool);
        }
    }

    /// Products of the hidden activations with the down projections, `[sorted rows, stride]`.
    fn multiply_hidden(&mut self, pool: &ThreadPool, experts: &[Expert<CpuBackend>], stride: usize) {
        let mut products = emptied(std::mem::take(&mut self.products));
        let used = used(experts, &self.starts).zip(&self.gated);
        products.extend(used.flat_map(|((expert, rows), x)| {
            let Linear { weight, bias } = &expert.down;
            weight.products(x, bias.as_deref(), rows.start)
        }));
        matmul(&products, &mut self.results, stride, pool);
        self.products = emptied(products);
    }
}

/// The experts that have rows, with the ranges of their sorted rows.
fn used<'a>(
    experts: &'a [Expert<CpuBackend>],
    starts: &'a [usize],
) -> impl Iterator<Item = (&'a Expert<CpuBackend>, Range<usize>)> {
    let rows = starts.windows(2).map(|range| range[0]..range[1]);
    experts.iter().zip(rows).filter(|(_, rows)| !rows.is_empty())
}

fn resize(buffer: &mut Vec<f32>, n: usize) {
    buffer.resize(n, 0.0);
}
