//! Mixtures of experts: the choice of experts, and products of each row with the matrices of its own.

use std::sync::Arc;

use throng_model::backend::{BackendError, Expert, Linear, Router};
use throng_model::config::RoutingScore;
use throng_model::cpu_backend::CpuBackend;
use throng_model::shapes::Activation;

use super::grown;
use super::products::{Product, column_groups};
use crate::GpuBackend;
use crate::buffers::Buffer;
use crate::device::{Device, Storage};
use crate::kernel::{Kernel, WeightLayout};
use crate::recorder::linear_groups;
use crate::weights::{Matrix, Piece};

/// Maximum number of experts of a layer.
const MOST_EXPERTS: usize = 1024;
/// Maximum number of experts of a row, and of groups of experts.
const MOST_USED: usize = 64;
/// Bytes of a buffer between the products of experts, beyond which rows are processed in parts.
const SCRATCH_BYTES: usize = 64 << 20;

/// The experts of a layer.
pub enum Experts {
    /// Their matrices are on the device.
    Device(DeviceExperts),
    /// Their matrices are on the processor, which computes them.
    Host(Vec<Expert<CpuBackend>>),
}

impl std::fmt::Debug for Experts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Device(experts) => experts.fmt(f),
            Self::Host(experts) => write!(f, "{} experts on the processor", experts.len()),
        }
    }
}

/// The experts of a layer on the device.
#[derive(Debug)]
pub struct DeviceExperts {
    n_experts: usize,
    gate_up: Stacked,
    down: Stacked,
}

/// The matrices of all experts in one place of the network.
#[derive(Debug)]
struct Stacked {
    n_rows: usize,
    cols: usize,
    chunks: Vec<Chunk>,
    /// `[experts, rows]`; zeros for an expert without a bias.
    bias: Option<Storage>,
}

/// Pieces of adjacent experts in one buffer.
#[derive(Debug)]
struct Chunk {
    first_expert: usize,
    n_experts: usize,
    piece: Piece,
}

/// Buffers between the products.
#[derive(Debug, Default)]
pub(crate) struct ExpertScratch {
    routes: Option<Storage>,
    gate_up: Option<Storage>,
    hidden: Option<Storage>,
    results: Option<Storage>,
}

impl DeviceExperts {
    pub(crate) fn new(device: &Arc<Device>, experts: Vec<Expert<GpuBackend>>) -> Result<Self, BackendError> {
        let n_experts = experts.len();
        if n_experts > MOST_EXPERTS {
            return Err(BackendError::Unsupported(format!("{n_experts} experts a layer")));
        }
        let (gate_up, down) = experts.into_iter().map(|expert| (expert.gate_up, expert.down)).unzip();
        Ok(Self { n_experts, gate_up: Stacked::new(device, gate_up)?, down: Stacked::new(device, down)? })
    }
}

impl Stacked {
    fn new(device: &Arc<Device>, linears: Vec<Linear<GpuBackend>>) -> Result<Self, BackendError> {
        let (n_rows, cols) = (linears[0].weight.n_rows, linears[0].weight.cols);
        let bias = Self::stack_bias(device, &linears, n_rows)?;
        let mut of_pieces: Vec<Vec<(usize, Piece)>> = Vec::new();
        for (expert_idx, linear) in linears.into_iter().enumerate() {
            let Matrix { pieces, .. } = linear.weight;
            for (i, piece) in pieces.into_iter().enumerate() {
                if of_pieces.len() <= i {
                    of_pieces.push(Vec::new());
                }
                of_pieces[i].push((expert_idx, piece));
            }
        }
        let mut chunks = Vec::new();
        for pieces in of_pieces {
            let mut run: Vec<(usize, Piece)> = Vec::new();
            for (expert_idx, piece) in pieces {
                if !run.is_empty() && !fits(device, &run, &piece, cols) {
                    chunks.push(stack(device, std::mem::take(&mut run), cols)?);
                }
                run.push((expert_idx, piece));
            }
            chunks.push(stack(device, run, cols)?);
        }
        Ok(Self { n_rows, cols, chunks, bias })
    }

    fn stack_bias(
        device: &Arc<Device>,
        linears: &[Linear<GpuBackend>],
        n_rows: usize,
    ) -> Result<Option<Storage>, BackendError> {
        if linears.iter().all(|linear| linear.bias.is_none()) {
            return Ok(None);
        }
        let all = device.storage("biases", linears.len() * n_rows * 4)?;
        let copies = linears.iter().enumerate().filter_map(|(i, linear)| Some((i, linear.bias.as_ref()?)));
        let copies: Vec<_> = copies
            .map(|(i, bias)| Copy { from: &bias.0, at: 0, to: i * n_rows * 4, n: n_rows * 4 })
            .collect();
        copy_all(device, &copies, &all);
        Ok(Some(all))
    }
}

/// Bytes of the codes of a piece, and of its scales.
fn sizes(piece: &Piece, cols: usize) -> (usize, usize) {
    let codes = piece.scales_at * 4;
    let scales = match piece.layout {
        WeightLayout::Q8_0 | WeightLayout::Q4_0 | WeightLayout::Q5_0 => piece.n_rows * cols / 32 * 2,
        WeightLayout::Q4_1 | WeightLayout::Q5_1 => piece.n_rows * cols / 32 * 4,
        WeightLayout::MXFP4 => piece.n_rows * cols / 32,
        WeightLayout::Q6_K => piece.n_rows * cols / 256 * 2,
        _ => 0,
    };
    (codes, scales)
}

/// Whether a piece can follow others in one buffer.
fn fits(device: &Device, run: &[(usize, Piece)], piece: &Piece, cols: usize) -> bool {
    let first = &run[0].1;
    let (codes, scales) = sizes(piece, cols);
    let n_bytes = (run.len() + 1) * (codes + scales);
    first.layout == piece.layout
        && (first.first_row, first.n_rows) == (piece.first_row, piece.n_rows)
        && scales.is_multiple_of(4)
        && n_bytes as u64 <= device.description().max_binding_bytes
}

/// Copies pieces into one buffer: the codes of all, then the scales of all.
fn stack(device: &Arc<Device>, run: Vec<(usize, Piece)>, cols: usize) -> Result<Chunk, BackendError> {
    let (first_expert, n_experts) = (run[0].0, run.len());
    if n_experts == 1 {
        let (_, piece) = run.into_iter().next().expect("one piece");
        return Ok(Chunk { first_expert, n_experts, piece });
    }
    let (codes, scales) = sizes(&run[0].1, cols);
    let storage = device.storage("experts", n_experts * (codes + scales))?;
    let mut copies = Vec::new();
    for (i, (_, piece)) in run.iter().enumerate() {
        let from = &piece.storage;
        copies.push(Copy { from, at: 0, to: i * codes, n: codes });
        copies.push(Copy { from, at: codes, to: n_experts * codes + i * scales, n: scales });
    }
    copy_all(device, &copies, &storage);
    let Piece { layout, first_row, n_rows, .. } = run[0].1;
    let piece = Piece { layout, first_row, n_rows, storage, scales_at: n_experts * codes / 4 };
    Ok(Chunk { first_expert, n_experts, piece })
}

/// A copy of `n` bytes.
struct Copy<'a> {
    from: &'a Storage,
    at: usize,
    to: usize,
    n: usize,
}

fn copy_all(device: &Device, copies: &[Copy<'_>], to: &Storage) {
    let mut encoder = device.inner.create_command_encoder(&Default::default());
    for copy in copies.iter().filter(|copy| copy.n > 0) {
        let (from, at) = (&copy.from.buffer, copy.at as u64);
        encoder.copy_buffer_to_buffer(from, at, &to.buffer, copy.to as u64, copy.n as u64);
    }
    device.queue.submit([encoder.finish()]);
    let _ = device.inner.poll(wgpu::PollType::wait_indefinitely());
}

/// Rows whose pairs with experts are processed together.
struct Pairs {
    first_row: usize,
    n_rows: usize,
    n_used: usize,
}

impl Pairs {
    fn n(&self) -> usize {
        self.n_rows * self.n_used
    }
}

impl GpuBackend {
    pub(super) fn run_experts(
        &mut self,
        x: &Buffer,
        router: Router<'_, Self>,
        experts: &DeviceExperts,
        activation: Activation,
        out: &Buffer,
    ) {
        let n_used = router.routing.n_used;
        assert!(n_used <= MOST_USED, "experts of a row");
        let widest = experts.gate_up.n_rows.max(experts.down.n_rows);
        let most_rows = (SCRATCH_BYTES / (n_used * widest * 4)).max(1);
        let mut scratch = std::mem::take(&mut self.scratch.experts);
        for first_row in (0..x.n_rows).step_by(most_rows) {
            let pairs = Pairs { first_row, n_rows: most_rows.min(x.n_rows - first_row), n_used };
            self.run_pairs(&pairs, x, router, experts, activation, &mut scratch, out);
        }
        self.scratch.experts = scratch;
    }

    fn run_pairs(
        &mut self,
        pairs: &Pairs,
        x: &Buffer,
        router: Router<'_, Self>,
        experts: &DeviceExperts,
        activation: Activation,
        scratch: &mut ExpertScratch,
        out: &Buffer,
    ) {
        let (n, device) = (pairs.n(), Arc::clone(&self.device));
        let width = experts.down.cols;
        let routes = grown(&device, &mut scratch.routes, 2 * n);
        let gate_up = grown(&device, &mut scratch.gate_up, n * experts.gate_up.n_rows);
        let hidden = grown(&device, &mut scratch.hidden, n * width);
        let results = grown(&device, &mut scratch.results, n * experts.down.n_rows);
        self.run_route(pairs, router, experts.n_experts, routes);
        let scales_inputs = router.routing.scales_inputs;
        let input = Routed {
            product: Product {
                n,
                x_stride: x.cols,
                x_first: pairs.first_row * x.cols,
                out_stride: experts.gate_up.n_rows,
                out_first: 0,
                adds: false,
            },
            pairs_per_row: pairs.n_used,
            scales_inputs,
        };
        self.run_routed(&input, &x.storage, routes, &experts.gate_up, gate_up);
        let is_gated = experts.gate_up.n_rows != width;
        self.run_glu(gate_up, hidden, n, width, is_gated, activation);
        let product =
            Product { x_stride: width, x_first: 0, out_stride: experts.down.n_rows, ..input.product };
        let output = Routed { product, pairs_per_row: 1, scales_inputs: false };
        self.run_routed(&output, hidden, routes, &experts.down, results);
        let n_elements = pairs.n_rows * experts.down.n_rows;
        let numbers = [
            n_elements,
            experts.down.n_rows,
            pairs.n_used,
            out.cols,
            pairs.first_row,
            n,
            usize::from(!scales_inputs),
        ];
        let params = numbers.map(|number| number as u32);
        let groups = linear_groups(n_elements.div_ceil(64));
        self.recorder.run(Kernel::Combine, &[results, routes, &out.storage], &params, groups);
    }

    fn run_route(&mut self, pairs: &Pairs, router: Router<'_, Self>, n_experts: usize, routes: &Storage) {
        let routing = router.routing;
        let (score, jitter) = match routing.score {
            RoutingScore::Softmax => (0, 0.0),
            RoutingScore::Sigmoid => (1, 0.0),
            RoutingScore::SparseMixer { jitter } => (2, jitter),
        };
        let groups =
            routing.groups.map_or([0; 3], |groups| [groups.n_groups, groups.n_used, groups.n_summed]);
        assert!(groups[0] <= MOST_USED, "groups of experts");
        let params = [
            pairs.n_rows as u32,
            n_experts as u32,
            pairs.n_used as u32,
            score,
            u32::from(routing.normalize),
            u32::from(router.bias.is_some()),
            u32::from(router.scales.is_some()),
            routing.scale.to_bits(),
            jitter.to_bits(),
            groups[0] as u32,
            groups[1] as u32,
            groups[2] as u32,
            pairs.first_row as u32,
            pairs.n() as u32,
        ];
        let kernel = Kernel::Route { n_experts: n_experts.next_power_of_two() as u32 };
        let bias = router.bias.map_or(&self.nothing, |bias| &bias.0);
        let scales = router.scales.map_or(&self.nothing, |scales| &scales.0);
        let buffers = [&router.logits.storage, bias, scales, routes];
        self.recorder.run(kernel, &buffers, &params, linear_groups(pairs.n_rows));
    }

    fn run_routed(&mut self, routed: &Routed, x: &Storage, routes: &Storage, w: &Stacked, out: &Storage) {
        let product = &routed.product;
        let in_vectors = product.in_vectors(w.cols);
        for Chunk { first_expert, n_experts, piece } in &w.chunks {
            let mut params = [0; 18];
            params[..13].copy_from_slice(&product.params(piece, w.cols, w.bias.is_some()));
            params[13] = *first_expert as u32;
            params[14] = *n_experts as u32;
            params[15] = routed.pairs_per_row as u32;
            params[16] = product.n as u32;
            params[17] = u32::from(routed.scales_inputs);
            let kernel = Kernel::Routed { weights: piece.layout, in_vectors };
            let bias = w.bias.as_ref().unwrap_or(&self.nothing);
            let groups = column_groups(piece.n_rows.div_ceil(4), product.n);
            self.recorder.run(kernel, &[x, &piece.storage, bias, out, routes], &params, groups);
        }
    }
}

/// A product of rows with the matrices of their experts.
struct Routed {
    product: Product,
    /// Number of pairs of a row of the input.
    pairs_per_row: usize,
    /// Whether rows are multiplied with the weights of their experts first.
    scales_inputs: bool,
}
