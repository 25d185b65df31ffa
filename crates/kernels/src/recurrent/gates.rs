//! Steps around the recurrence: lengths of queries and keys, decay and strength of each head, the gated norm
//! of the output. Does not know states.

use super::keys::KeyProducts;
use crate::disjoint::Disjoint;
use crate::reference::{DeltaWeights, L2_EPS, StateSpaceShape, StateSpaceWeights, sigmoid, softplus};
use crate::rows::{InverseRms, for_each_row, load_part, store_part};
use crate::simd::{self, CheckedKernel, Kernel, SimdIsa};
use crate::threads::ThreadPool;

/// Decay and strength of every row and head, and products of keys; kept from step to step.
#[derive(Debug, Default)]
pub struct GateScratch {
    gates: Vec<(f32, f32)>,
    n_heads: usize,
    /// `[rows, heads of keys]`.
    pub(super) products: Vec<KeyProducts>,
}

impl GateScratch {
    fn fill(&mut self, n_heads: usize, gates: impl Iterator<Item = (f32, f32)>) {
        self.n_heads = n_heads;
        self.gates.clear();
        self.gates.extend(gates);
    }

    /// Decay and strength of a head at a row.
    pub(super) fn of(&self, row: usize, head: usize) -> (f32, f32) {
        self.gates[row * self.n_heads + head]
    }
}

/// The gates of the delta rule, from the columns of strength and time that begin at `col`.
pub(super) fn delta_gates(
    x: &[f32],
    stride: usize,
    col: usize,
    weights: &DeltaWeights<'_>,
    scratch: &mut GateScratch,
) {
    let n_heads = weights.decay_rate.len();
    let of_row = |row| {
        (0..n_heads).map(move |head| {
            let (strength, time) = (x[row * stride + col + head], x[row * stride + col + n_heads + head]);
            let time = softplus(time + weights.time_bias[head]);
            ((weights.decay_rate[head] * time).exp(), sigmoid(strength))
        })
    };
    scratch.fill(n_heads, (0..x.len() / stride).flat_map(of_row));
}

/// The gates of a state space model, from the columns of time that begin at `col`.
pub(super) fn state_space_gates(
    x: &[f32],
    stride: usize,
    col: usize,
    shape: &StateSpaceShape,
    weights: &StateSpaceWeights<'_>,
    scratch: &mut GateScratch,
) {
    let [least, most] = shape.time_limits;
    let of_row = |row| {
        (0..shape.n_heads).map(move |head| {
            let time = softplus(x[row * stride + col + head] + weights.time_bias[head]).clamp(least, most);
            ((weights.decay_rate[head] * time).exp(), time)
        })
    };
    scratch.fill(shape.n_heads, (0..x.len() / stride).flat_map(of_row));
}

/// Divides the heads in the first `width` columns of each row by their lengths; queries, the first half, also
/// by the root of the number of their elements.
pub(super) fn normalize_heads(x: &mut [f32], stride: usize, width: usize, dim: usize, pool: &ThreadPool) {
    let n_rows = x.len() / stride;
    let x = Disjoint::new(x);
    for_each_row(n_rows, width, pool, |row| {
        // SAFETY: the row belongs to one call.
        let heads = unsafe { x.part(row * stride, width) };
        for (i, head) in heads.chunks_exact_mut(dim).enumerate() {
            let scale = if i * dim < width / 2 { (1.0 / dim as f32).sqrt() } else { 1.0 };
            pool.isa().run_checked(DivideByLength { x: head, scale });
        }
    });
}

/// Division of one head by its length.
struct DivideByLength<'a> {
    x: &'a mut [f32],
    scale: f32,
}

// SAFETY: slices only, and their lengths are checked.
unsafe impl CheckedKernel for DivideByLength<'_> {}

impl Kernel for DivideByLength<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        // SAFETY: parts are at most sixteen elements.
        unsafe {
            let mut squares = S::splat(0.0);
            for x in self.x.chunks(16) {
                let x = load_part::<S>(x);
                squares = S::add(squares, S::mul(x, x));
            }
            let factor = S::splat(self.scale / (simd::sum::<S>(squares) + L2_EPS).sqrt());
            for x in self.x.chunks_mut(16) {
                let scaled = S::mul(load_part::<S>(x), factor);
                store_part::<S>(x, scaled);
            }
        }
    }
}

/// The norm of the output of a recurrence.
pub(super) struct GatedNorm<'a> {
    /// Gain for one group of columns, or for all columns.
    pub(super) gain: &'a [f32],
    /// Epsilon that is added to the mean square.
    pub(super) eps: f32,
    /// Number of columns of a group, each normed for itself.
    pub(super) width: usize,
    /// Whether the output is multiplied with SiLU of the gate before it is normed, or after.
    pub(super) gates_first: bool,
    /// Whether that is all.
    pub(super) gates_only: bool,
}

/// Norms the rows of `out`, with the gate in the columns of `x` that begin at `col`.
pub(super) fn gated_norm(
    out: &mut [f32],
    cols: usize,
    norm: &GatedNorm<'_>,
    x: &[f32],
    stride: usize,
    col: usize,
    pool: &ThreadPool,
) {
    let n_rows = out.len() / cols;
    let out = Disjoint::new(out);
    for_each_row(n_rows, 4 * cols, pool, |row| {
        // SAFETY: the row belongs to one call.
        let out = unsafe { out.part(row * cols, cols) };
        let gates = x[row * stride + col..][..cols].chunks_exact(norm.width);
        for (group, (out, gate)) in out.chunks_exact_mut(norm.width).zip(gates).enumerate() {
            let gain = &norm.gain[group * norm.width % norm.gain.len()..][..norm.width];
            pool.isa().run_checked(NormGroup { x: out, gate, gain, norm });
        }
    });
}

/// One group of columns of a row.
struct NormGroup<'a> {
    x: &'a mut [f32],
    gate: &'a [f32],
    gain: &'a [f32],
    norm: &'a GatedNorm<'a>,
}

// SAFETY: slices only, and their lengths are checked.
unsafe impl CheckedKernel for NormGroup<'_> {}

impl Kernel for NormGroup<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        let Self { x, gate, gain, norm } = self;
        // SAFETY: parts are at most sixteen elements.
        unsafe {
            if norm.gates_first || norm.gates_only {
                multiply_by_silu::<S>(x, gate);
            }
            if norm.gates_only {
                return;
            }
            let inverse = S::splat(InverseRms { x, eps: norm.eps }.run::<S>());
            for (x, gain) in x.chunks_mut(16).zip(gain.chunks(16)) {
                let normed = S::mul(S::mul(load_part::<S>(x), inverse), load_part::<S>(gain));
                store_part::<S>(x, normed);
            }
            if !norm.gates_first {
                multiply_by_silu::<S>(x, gate);
            }
        }
    }
}

/// # Safety
/// The ISA's features must be available.
#[inline(always)]
unsafe fn multiply_by_silu<S: SimdIsa>(x: &mut [f32], gate: &[f32]) {
    for (x, gate) in x.chunks_mut(16).zip(gate.chunks(16)) {
        // SAFETY: parts are at most sixteen elements.
        unsafe {
            let y = S::mul(load_part::<S>(x), simd::silu::<S>(load_part::<S>(gate)));
            store_part::<S>(x, y);
        }
    }
}
