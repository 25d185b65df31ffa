//! Gates of a sigmoid. Does not know the gated values.

use super::{for_each_row, load_part, store_part};
use crate::disjoint::Disjoint;
use crate::simd::{CheckedKernel, Kernel, SimdIsa, exp};
use crate::threads::ThreadPool;

/// `x[i][c] *= sigmoid(gates[i][first_col + c])`: rows of `cols` columns, and of `stride`.
///
/// # Panics
/// When the lengths do not fit.
pub fn gate_columns(
    x: &mut [f32],
    cols: usize,
    gates: &[f32],
    stride: usize,
    first_col: usize,
    pool: &ThreadPool,
) {
    let n_rows = x.len() / cols;
    assert!(gates.len() == n_rows * stride && first_col + cols <= stride, "columns beyond the row");
    let x = Disjoint::new(x);
    for_each_row(n_rows, 4 * cols, pool, |row| {
        // SAFETY: the row belongs to one call.
        let x = unsafe { x.part(row * cols, cols) };
        pool.isa().run_checked(Gate { x, gate: &gates[row * stride + first_col..][..cols] });
    });
}

/// Gating of one row.
struct Gate<'a> {
    x: &'a mut [f32],
    gate: &'a [f32],
}

// SAFETY: slices only, and their lengths are checked.
unsafe impl CheckedKernel for Gate<'_> {}

impl Kernel for Gate<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        for (x, gate) in self.x.chunks_mut(16).zip(self.gate.chunks(16)) {
            // SAFETY: parts are at most sixteen elements.
            unsafe {
                let e = exp::<S>(S::sub(S::splat(0.0), load_part::<S>(gate)));
                let y = S::div(load_part::<S>(x), S::add(S::splat(1.0), e));
                store_part::<S>(x, y);
            }
        }
    }
}
