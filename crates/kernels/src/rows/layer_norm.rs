//! Layer norm of rows. Does not know the next operation.

use super::{Columns, for_each_row, load_part, store_part};
use crate::disjoint::Disjoint;
use crate::simd::{self, CheckedKernel, Kernel, SimdIsa};
use crate::threads::ThreadPool;

/// Layer norm of every row, `out = (x - mean(x)) / sqrt(variance(x) + eps) * gain + bias` (arXiv:1607.06450).
///
/// # Panics
/// When the lengths differ or are not whole rows of `gain.len()`.
pub fn layer_norm(x: &[f32], gain: &[f32], bias: &[f32], eps: f32, out: &mut [f32], pool: &ThreadPool) {
    let d = gain.len();
    assert!(d > 0 && x.len() == out.len() && x.len().is_multiple_of(d) && bias.len() == d, "rows of {d}");
    let out = Disjoint::new(out);
    for_each_row(x.len() / d, d, pool, |i| {
        // SAFETY: row `i` belongs to one call.
        let out = unsafe { out.part(i * d, d) };
        pool.isa().run_checked(LayerNorm { x: &x[i * d..][..d], gain, bias, eps, out });
    });
}

/// Number of elements of the largest group of [`layer_norm_groups`].
pub const MAX_GROUP: usize = 4096;

/// [`layer_norm`] in place over groups of columns, with an element of gain and bias for each column.
///
/// # Panics
/// When `x` is not whole rows, gain and bias are not all groups wide, or a group is larger than
/// [`MAX_GROUP`].
pub fn layer_norm_groups(
    x: &mut [f32],
    stride: usize,
    columns: Columns,
    (gain, bias): (&[f32], &[f32]),
    eps: f32,
    pool: &ThreadPool,
) {
    let (width, all) = (columns.width, columns.n_groups * columns.width);
    assert!(gain.len() == all && bias.len() == all && width <= MAX_GROUP, "gain and groups");
    let n_rows = columns.rows_of(stride, x.len());
    let x = Disjoint::new(x);
    for_each_row(n_rows, all, pool, |i| {
        // SAFETY: row `i` belongs to one call.
        let row = unsafe { x.part(i * stride + columns.first, all) };
        let mut before = [0.0; MAX_GROUP];
        let gains = gain.chunks_exact(width).zip(bias.chunks_exact(width));
        for (out, (gain, bias)) in row.chunks_exact_mut(width).zip(gains) {
            let x = &mut before[..width];
            x.copy_from_slice(out);
            pool.isa().run_checked(LayerNorm { x, gain, bias, eps, out });
        }
    });
}

/// Norm of one row.
struct LayerNorm<'a> {
    x: &'a [f32],
    gain: &'a [f32],
    bias: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

// SAFETY: slices only, and their lengths are checked.
unsafe impl CheckedKernel for LayerNorm<'_> {}

impl Kernel for LayerNorm<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        // SAFETY: parts are at most sixteen elements.
        unsafe {
            let mut sums = S::splat(0.0);
            for x in self.x.chunks(16) {
                sums = S::add(sums, load_part::<S>(x));
            }
            let mean = S::splat(simd::sum::<S>(sums) / self.x.len() as f32);
            let mut squares = S::splat(0.0);
            for (x, out) in self.x.chunks(16).zip(self.out.chunks_mut(16)) {
                // The padding of the last part is no part of the variance: it is not stored, and read back as zeros.
                store_part::<S>(out, S::sub(load_part::<S>(x), mean));
                let centred = load_part::<S>(out);
                squares = S::add(squares, S::mul(centred, centred));
            }
            let variance = simd::sum::<S>(squares) / self.x.len() as f32;
            let inverse = S::splat(1.0 / (variance + self.eps).sqrt());
            let parts = self.gain.chunks(16).zip(self.bias.chunks(16)).zip(self.out.chunks_mut(16));
            for ((gain, bias), out) in parts {
                let scaled = S::mul(S::mul(load_part::<S>(out), inverse), load_part::<S>(gain));
                store_part::<S>(out, S::add(scaled, load_part::<S>(bias)));
            }
        }
    }
}
