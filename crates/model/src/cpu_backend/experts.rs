//! A routed mixture of experts: rows sorted by expert, so that every expert's weights are read once, for all of its
//! rows, in one fork of all threads a projection. Refuses to know where router logits come from.

use throng_kernels::matmul::{Activations, Product, matmul};
use throng_kernels::reference::softmax;
use throng_kernels::rows::{self, Gate};
use throng_kernels::threads::ThreadPool;

use super::CpuMatrix;
use crate::backend::Expert;
use crate::config::Routing;
use crate::host_buffer::HostBuffer;

/// Who computes what, and the rows in between; kept from call to call.
#[derive(Debug, Default)]
pub(super) struct ExpertsScratch {
    /// Probabilities of one row's experts.
    probabilities: Vec<f32>,
    /// Those of its experts that are not chosen yet, in increasing order.
    free: Vec<(usize, f32)>,
    /// `[rows, n_used]` of (expert, weight), a row's experts in increasing order.
    chosen: Vec<(usize, f32)>,
    /// Where each expert's rows begin among the sorted ones, and where the last one's end.
    starts: Vec<usize>,
    /// The row that each of the sorted ones is.
    rows: Vec<usize>,
    /// `[rows, n_used]` of (place among the sorted rows, weight).
    terms: Vec<(usize, f32)>,
    /// Of each expert.
    activations: Vec<Activations>,
    /// Room for the list of a projection's products; empty between calls.
    products: Vec<Product<'static>>,
    sorted: Vec<f32>,
    hidden: Vec<f32>,
    results: Vec<f32>,
}

impl ExpertsScratch {
    #[allow(clippy::too_many_arguments, reason = "the operands of one operation of the backend")]
    pub(super) fn run(
        &mut self,
        pool: &ThreadPool,
        x: &HostBuffer,
        router_logits: &HostBuffer,
        experts: &[Expert<CpuMatrix>],
        routing: &Routing,
        gate: Gate,
        out: &mut HostBuffer,
    ) {
        self.route(router_logits, routing);
        self.sort(experts.len(), routing.n_used);
        let n_sorted = x.n_rows() * routing.n_used;
        let (width, hidden) = (experts[0].down.cols(), out.cols());

        resize(&mut self.sorted, n_sorted * x.cols());
        rows::gather(x.as_slice(), x.cols(), &self.rows, &mut self.sorted, pool);
        resize(&mut self.hidden, n_sorted * width);
        resize(&mut self.results, n_sorted * hidden);
        let gate_ups = experts.iter().map(|expert| &expert.gate_up);
        let (room, activations) = (&mut self.products, &mut self.activations);
        let starts = &self.starts;
        project(pool, gate_ups, Some(gate), starts, activations, room, &self.sorted, &mut self.hidden);
        let downs = experts.iter().map(|expert| &expert.down);
        project(pool, downs, None, starts, activations, room, &self.hidden, &mut self.results);

        rows::weighted_sums(&self.results, hidden, &self.terms, out.as_mut_slice(), pool);
    }

    /// The `n_used` most probable experts of every row with their weights.
    fn route(&mut self, router_logits: &HostBuffer, routing: &Routing) {
        self.chosen.clear();
        for row_idx in 0..router_logits.n_rows() {
            self.probabilities.clear();
            self.probabilities.extend_from_slice(router_logits.row(row_idx));
            softmax(&mut self.probabilities);
            self.free.clear();
            self.free.extend(self.probabilities.iter().copied().enumerate());
            let first = self.chosen.len();
            for _ in 0..routing.n_used {
                let most = self.most_probable();
                self.chosen.push(self.free.remove(most));
            }
            let chosen = &mut self.chosen[first..];
            if routing.normalize {
                let sum: f32 = chosen.iter().map(|(_, weight)| weight).sum();
                chosen.iter_mut().for_each(|(_, weight)| *weight /= sum);
            }
            chosen.sort_unstable_by_key(|(expert_idx, _)| *expert_idx);
        }
    }

    /// Where the most probable of the free experts stands: the first of equals.
    fn most_probable(&self) -> usize {
        // A row of NaN is somebody's: its results are NaN, too.
        let better =
            |best: usize, other: usize| if self.free[other].1 > self.free[best].1 { other } else { best };
        (0..self.free.len()).reduce(better).expect("no more experts are used than there are")
    }

    /// Finds places for the rows so that those of an expert stand together, in order of row.
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
        if self.activations.len() < n_experts {
            self.activations.resize_with(n_experts, Activations::default);
        }
    }
}

/// Every expert's rows of `x` times its matrix, or what its gate makes of them.
#[allow(clippy::too_many_arguments, reason = "the operands of one operation")]
fn project<'a>(
    pool: &ThreadPool,
    matrices: impl Iterator<Item = &'a CpuMatrix> + Clone,
    gate: Option<Gate>,
    starts: &[usize],
    activations: &mut [Activations],
    room: &mut Vec<Product<'static>>,
    x: &[f32],
    out: &mut [f32],
) {
    let n_sorted = starts[starts.len() - 1];
    let (x_cols, stride) = (x.len() / n_sorted, out.len() / n_sorted);
    for (expert_idx, matrix) in matrices.clone().enumerate() {
        let x = &x[starts[expert_idx] * x_cols..starts[expert_idx + 1] * x_cols];
        if !x.is_empty() {
            activations[expert_idx].set(x, x_cols, matrix.forms(), pool);
        }
    }
    let used = matrices.zip(&*activations).zip(starts.windows(2)).filter(|(_, range)| range[0] < range[1]);
    let mut products = emptied(std::mem::take(room));
    match gate {
        None => products.extend(used.flat_map(|((matrix, x), range)| matrix.products(x, None, range[0]))),
        Some(gate) => products.extend(used.map(|((matrix, x), range)| {
            matrix.gated_product(x, None, gate, range[0]).expect("gate and up are two parts")
        })),
    }
    matmul(&products, out, stride, pool);
    *room = emptied(products);
}

/// The same room for products of other borrows: collected in place, so that nothing is allocated.
fn emptied<'a>(mut products: Vec<Product<'_>>) -> Vec<Product<'a>> {
    products.clear();
    products.into_iter().map_while(|_| None).collect()
}

fn resize(buffer: &mut Vec<f32>, n: usize) {
    buffer.resize(n, 0.0);
}
