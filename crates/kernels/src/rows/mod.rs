//! Row-wise operations on the pool's ISA: norms, gated activations, sums, soft caps. A row's result bits
//! depend on the row alone.

mod activation;
mod gate;
mod layer_norm;
mod rope;
mod softmax;

pub use activation::Activation;
pub use gate::gate_columns;
pub use layer_norm::{layer_norm, layer_norm_groups};
pub use rope::rope;
pub(crate) use softmax::exponentials;

use crate::disjoint::Disjoint;
use crate::reference::AttentionShape;
use crate::simd::{self, CheckedKernel, Kernel, SimdIsa};
use crate::threads::ThreadPool;

/// Below this many elements, waking the other threads costs more than it saves.
pub(crate) const WORTH_FORKING: usize = 16_384;
/// Number of elements of one work item.
const ITEM: usize = 4096;

/// Adjacent groups of columns of each row, such as the heads of a projection: `n_groups` of `width` from
/// `first` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    /// Index of the first column.
    pub first: usize,
    /// Number of groups.
    pub n_groups: usize,
    /// Number of columns of one group.
    pub width: usize,
}

impl Columns {
    /// The query heads of a projection to queries, keys and values.
    pub fn of_queries(shape: &AttentionShape) -> Self {
        Self { first: 0, n_groups: shape.n_heads, width: shape.head_dim }
    }

    /// Columns of the key heads, after the queries.
    pub fn of_keys(shape: &AttentionShape) -> Self {
        Self { first: shape.n_heads * shape.head_dim, n_groups: shape.n_kv_heads, width: shape.head_dim }
    }

    /// Columns of the value heads, after the keys.
    pub fn of_values(shape: &AttentionShape) -> Self {
        Self { first: Self::of_keys(shape).end(), ..Self::of_keys(shape) }
    }

    /// Column after the last one.
    pub fn end(&self) -> usize {
        self.first + self.n_groups * self.width
    }

    /// Number of rows of `stride` elements in `len` elements.
    fn rows_of(&self, stride: usize, len: usize) -> usize {
        assert!(stride > 0 && len.is_multiple_of(stride), "rows of {stride} in {len}");
        assert!(self.end() <= stride, "columns beyond the row: {self:?}");
        len / stride
    }
}

/// Calls `row(i)` for every row, on all threads if there is enough work.
pub(crate) fn for_each_row(n_rows: usize, cols: usize, pool: &ThreadPool, row: impl Fn(usize) + Sync) {
    if n_rows * cols < WORTH_FORKING {
        return pool.run_here(|| (0..n_rows).for_each(row));
    }
    let rows_an_item = (ITEM / cols).max(1);
    pool.for_each(n_rows.div_ceil(rows_an_item), |item| {
        let first = item * rows_an_item;
        (first..(first + rows_an_item).min(n_rows)).for_each(&row);
    });
}

/// `out = x / sqrt(mean(x²) + eps) * gain` for every row (arXiv:1910.07467).
///
/// # Panics
/// When the lengths differ or are not whole rows of `gain.len()`.
pub fn rms_norm(x: &[f32], gain: &[f32], eps: f32, out: &mut [f32], pool: &ThreadPool) {
    let d = gain.len();
    assert!(d > 0 && x.len() == out.len() && x.len().is_multiple_of(d), "rows of {d} in {}", x.len());
    let out = Disjoint::new(out);
    for_each_row(x.len() / d, d, pool, |i| {
        // SAFETY: row `i` belongs to one call.
        let out = unsafe { out.part(i * d, d) };
        let x = &x[i * d..][..d];
        let inverse = pool.isa().run_checked(InverseRms { x, eps });
        pool.isa().run_checked(Scale { x, inverse, gain, out });
    });
}

/// [`rms_norm`] in place over groups of columns, one gain for all groups.
///
/// # Panics
/// When `x` is not whole rows or the gain is not a group wide.
pub fn norm_groups(
    x: &mut [f32],
    stride: usize,
    columns: Columns,
    gain: &[f32],
    eps: f32,
    pool: &ThreadPool,
) {
    assert_eq!(gain.len(), columns.width, "gain and group");
    each_group(x, stride, columns, pool, |_, x| {
        pool.isa().run_checked(Norm { x, gain, eps });
    });
}

fn each_group(
    x: &mut [f32],
    stride: usize,
    columns: Columns,
    pool: &ThreadPool,
    work: impl Fn(usize, &mut [f32]) + Sync,
) {
    let n_rows = columns.rows_of(stride, x.len());
    let x = Disjoint::new(x);
    let width = columns.n_groups * columns.width;
    for_each_row(n_rows, width, pool, |i| {
        // SAFETY: row `i` belongs to one call.
        let row = unsafe { x.part(i * stride + columns.first, width) };
        row.chunks_exact_mut(columns.width).for_each(|group| work(i, group));
    });
}

/// `out[i] = gate(x[i, ..w]) * x[i, w..]` for rows of `2 w` (arXiv:2002.05202), `gate(x[i])` for rows of `w`.
///
/// # Panics
/// When the lengths are not whole rows.
pub fn glu(gate_up: &[f32], width: usize, function: Activation, out: &mut [f32], pool: &ThreadPool) {
    assert!(
        width > 0
            && out.len().is_multiple_of(width)
            && [1, 2].map(|n| n * out.len()).contains(&gate_up.len()),
        "rows of {width}"
    );
    let (out_rows, is_gated) = (out.len() / width, gate_up.len() > out.len());
    let out = Disjoint::new(out);
    // An activation function costs several times an addition.
    for_each_row(out_rows, 4 * width, pool, |i| {
        // SAFETY: row `i` belongs to one call.
        let out = unsafe { out.part(i * width, width) };
        if is_gated {
            let (gate, up) = gate_up[2 * i * width..][..2 * width].split_at(width);
            pool.isa().run_checked(Glu { gate, up, out, function });
        } else {
            pool.isa().run_checked(Activate { x: &gate_up[i * width..][..width], out, function });
        }
    });
}

/// `x += y * factor`.
///
/// # Panics
/// When the lengths differ.
pub fn add_scaled(x: &mut [f32], y: &[f32], factor: f32, pool: &ThreadPool) {
    assert_eq!(x.len(), y.len());
    each_chunk(x, pool, |at, x| {
        for (x, y) in x.iter_mut().zip(&y[at..]) {
            *x += y * factor;
        }
    });
}

/// `out[i] = x[from[i]]`, rows of `cols`.
///
/// # Panics
/// When the lengths do not fit or a row is not there.
pub fn gather(x: &[f32], cols: usize, from: &[usize], out: &mut [f32], pool: &ThreadPool) {
    assert_eq!(out.len(), from.len() * cols, "rows of {cols}");
    let out = Disjoint::new(out);
    for_each_row(from.len(), cols, pool, |i| {
        // SAFETY: row `i` belongs to one call.
        unsafe { out.part(i * cols, cols) }.copy_from_slice(&x[from[i] * cols..][..cols]);
    });
}

/// `out[i] = Σ_j weight_ij x[row_ij]`, rows of `cols`, where `terms` has the same number of `(row, weight)`
/// for each row of `out`; added in their order.
///
/// # Panics
/// When the lengths do not fit or a row is not there.
pub fn weighted_sums(x: &[f32], cols: usize, terms: &[(usize, f32)], out: &mut [f32], pool: &ThreadPool) {
    let n_rows = out.len() / cols;
    let n_terms = terms.len().checked_div(n_rows).unwrap_or(0);
    assert!(out.len() == n_rows * cols && terms.len() == n_rows * n_terms, "rows of {cols}");
    let out = Disjoint::new(out);
    for_each_row(n_rows, n_terms * cols, pool, |i| {
        // SAFETY: row `i` belongs to one call.
        let sum = unsafe { out.part(i * cols, cols) };
        sum.fill(0.0);
        for &(row, weight) in &terms[i * n_terms..][..n_terms] {
            sum.iter_mut().zip(&x[row * cols..][..cols]).for_each(|(sum, x)| *sum += weight * x);
        }
    });
}

/// `x *= factor`.
pub fn scale(x: &mut [f32], factor: f32, pool: &ThreadPool) {
    each_chunk(x, pool, |_, x| x.iter_mut().for_each(|x| *x *= factor));
}

/// `x = cap tanh(x / cap)` (arXiv:2408.00118).
pub fn softcap(x: &mut [f32], cap: f32, pool: &ThreadPool) {
    each_chunk(x, pool, |_, x| {
        pool.isa().run_checked(Softcap { x, cap });
    });
}

fn each_chunk(x: &mut [f32], pool: &ThreadPool, work: impl Fn(usize, &mut [f32]) + Sync) {
    let len = x.len();
    let x = Disjoint::new(x);
    for_each_row(len.div_ceil(ITEM), ITEM, pool, |i| {
        let at = i * ITEM;
        // SAFETY: each range belongs to one call.
        work(at, unsafe { x.part(at, ITEM.min(len - at)) });
    });
}

/// Loads up to sixteen elements, padded with zeros.
#[inline(always)]
pub(crate) unsafe fn load_part<S: SimdIsa>(x: &[f32]) -> S::F {
    // SAFETY: sixteen elements in either case.
    unsafe {
        if x.len() == 16 {
            return S::load(x.as_ptr());
        }
        let mut padded = [0.0; 16];
        padded[..x.len()].copy_from_slice(x);
        S::load(padded.as_ptr())
    }
}

#[inline(always)]
pub(crate) unsafe fn store_part<S: SimdIsa>(out: &mut [f32], x: S::F) {
    // SAFETY: sixteen elements in either case.
    unsafe {
        if out.len() == 16 {
            return S::store(out.as_mut_ptr(), x);
        }
        let mut padded = [0.0; 16];
        S::store(padded.as_mut_ptr(), x);
        out.copy_from_slice(&padded[..out.len()]);
    }
}

/// A norm of one row, in place.
struct Norm<'a> {
    x: &'a mut [f32],
    gain: &'a [f32],
    eps: f32,
}

// SAFETY: slices only, and their lengths are checked.
unsafe impl CheckedKernel for Norm<'_> {}

impl Kernel for Norm<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        // SAFETY: parts are at most sixteen elements.
        unsafe {
            let inverse = S::splat(InverseRms { x: self.x, eps: self.eps }.run::<S>());
            for (x, gain) in self.x.chunks_mut(16).zip(self.gain.chunks(16)) {
                let y = S::mul(S::mul(load_part::<S>(x), inverse), load_part::<S>(gain));
                store_part::<S>(x, y);
            }
        }
    }
}

/// `1 / sqrt(mean(x²) + eps)` of one row.
pub(crate) struct InverseRms<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) eps: f32,
}

// SAFETY: slices only, and their lengths are checked.
unsafe impl CheckedKernel for InverseRms<'_> {}

impl Kernel for InverseRms<'_> {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) -> f32 {
        // SAFETY: parts are at most sixteen elements.
        unsafe {
            let mut squares = S::splat(0.0);
            for x in self.x.chunks(16) {
                let x = load_part::<S>(x);
                squares = S::add(squares, S::mul(x, x));
            }
            let mean = simd::sum::<S>(squares) / self.x.len() as f32;
            1.0 / (mean + self.eps).sqrt()
        }
    }
}

/// Part of a row, whose inverse is known.
pub(crate) struct Scale<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) inverse: f32,
    pub(crate) gain: &'a [f32],
    pub(crate) out: &'a mut [f32],
}

// SAFETY: slices only, and their lengths are checked.
unsafe impl CheckedKernel for Scale<'_> {}

impl Kernel for Scale<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        let parts = self.x.chunks(16).zip(self.gain.chunks(16)).zip(self.out.chunks_mut(16));
        for ((x, gain), out) in parts {
            // SAFETY: parts are at most sixteen elements.
            unsafe {
                let scaled = S::mul(load_part::<S>(x), S::splat(self.inverse));
                store_part::<S>(out, S::mul(scaled, load_part::<S>(gain)));
            }
        }
    }
}

/// Activation of one row of a gated feed-forward network.
pub(crate) struct Glu<'a> {
    pub(crate) gate: &'a [f32],
    pub(crate) up: &'a [f32],
    pub(crate) out: &'a mut [f32],
    pub(crate) function: Activation,
}

// SAFETY: slices only, and their lengths are checked.
unsafe impl CheckedKernel for Glu<'_> {}

impl Kernel for Glu<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        let parts = self.gate.chunks(16).zip(self.up.chunks(16)).zip(self.out.chunks_mut(16));
        for ((gate, up), out) in parts {
            // SAFETY: parts are at most sixteen elements.
            unsafe {
                let y = self.function.glu::<S>(load_part::<S>(gate), load_part::<S>(up));
                store_part::<S>(out, y);
            }
        }
    }
}

/// The activation of one row of a network without gates.
struct Activate<'a> {
    x: &'a [f32],
    out: &'a mut [f32],
    function: Activation,
}

// SAFETY: slices only, and their lengths are checked.
unsafe impl CheckedKernel for Activate<'_> {}

impl Kernel for Activate<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        for (x, out) in self.x.chunks(16).zip(self.out.chunks_mut(16)) {
            // SAFETY: parts are at most sixteen elements.
            unsafe {
                let y = self.function.glu::<S>(load_part::<S>(x), S::splat(1.0));
                store_part::<S>(out, y);
            }
        }
    }
}

struct Softcap<'a> {
    x: &'a mut [f32],
    cap: f32,
}

// SAFETY: slices only, and their lengths are checked.
unsafe impl CheckedKernel for Softcap<'_> {}

impl Kernel for Softcap<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        for x in self.x.chunks_mut(16) {
            // SAFETY: parts are at most sixteen elements.
            unsafe {
                let cap = S::splat(self.cap);
                let y = S::mul(cap, simd::tanh::<S>(S::div(load_part::<S>(x), cap)));
                store_part::<S>(x, y);
            }
        }
    }
}
