//! Products of matrices in register tiles, for the blocks of a recurrence: vectors of several tokens with a
//! head's matrix, and the matrix after a block. Every element is one sum in one order, independent of the
//! tile. Does not know keys, queries and decays.

use super::keys::KeyRows;
use super::state::{BLOCK, COLUMNS};
use crate::simd::{SimdIsa, prefetch_bytes};

/// Prefetch distance of a single token's pass over a matrix, in elements: 8 KiB.
const PREFETCH_DISTANCE: usize = 2048;

/// Products of at most `V` keys and queries with `G` groups of columns.
#[repr(align(64))]
pub(super) struct Products<const V: usize, const G: usize>(pub(super) [[[f32; COLUMNS]; G]; V]);

/// Runs a register tile over as many rows as the ISA's registers hold accumulators for, then over fewer.
macro_rules! in_tiles {
    ($n:expr, $tile:ident::<$S:ident, $G:ident>($($argument:expr),*)) => {{
        let (n, mut first) = ($n, 0);
        while first < n {
            if $S::REGISTERS >= 32 && n - first >= 8 {
                $tile::<$S, 8, $G>(first, $($argument),*);
                first += 8;
            } else if $S::REGISTERS >= 32 && n - first >= 4 {
                $tile::<$S, 4, $G>(first, $($argument),*);
                first += 4;
            } else if n - first >= 2 {
                $tile::<$S, 2, $G>(first, $($argument),*);
                first += 2;
            } else {
                $tile::<$S, 1, $G>(first, $($argument),*);
                first += 1;
            }
        }
    }};
}

/// Products of all vectors with groups of columns: `Σ_i vector[i] matrix[i]`.
///
/// # Safety
/// The ISA's features must be available.
#[inline(always)]
pub(super) unsafe fn multiply<S: SimdIsa, const V: usize, const G: usize>(
    vectors: &[&[f32]],
    matrix: &[f32],
    out: &mut Products<V, G>,
) {
    // Where a row takes several instructions, few rows fit the out-of-order window, and reading a matrix would wait for memory.
    let (out, is_streamed) = (&mut out.0[..vectors.len()], V <= 2 && S::REGISTERS < 32);
    // SAFETY: tiles are within the vectors.
    unsafe { in_tiles!(vectors.len(), multiply_tile::<S, G>(vectors, matrix, out, is_streamed)) };
}

/// # Safety
/// The ISA's features must be available.
#[inline(always)]
unsafe fn multiply_tile<S: SimdIsa, const R: usize, const G: usize>(
    first: usize,
    vectors: &[&[f32]],
    matrix: &[f32],
    out: &mut [[[f32; COLUMNS]; G]],
    is_streamed: bool,
) {
    let (vectors, key_dim) = (&vectors[first..first + R], matrix.len() / (G * COLUMNS));
    assert!(vectors.iter().all(|x| x.len() == key_dim));
    // SAFETY: vectors have `key_dim` elements, the matrix as many rows of `G` vectors.
    unsafe {
        let mut sums = [[S::splat(0.0); G]; R];
        for i in 0..key_dim {
            let mut columns = [S::splat(0.0); G];
            if is_streamed {
                let ahead = matrix.as_ptr().wrapping_add(i * G * COLUMNS + PREFETCH_DISTANCE);
                prefetch_bytes::<S, false>(ahead.cast(), G * COLUMNS * size_of::<f32>());
            }
            for (g, columns) in columns.iter_mut().enumerate() {
                *columns = S::load(matrix.as_ptr().add((i * G + g) * COLUMNS));
            }
            for (sums, vector) in sums.iter_mut().zip(vectors) {
                let x = S::splat(*vector.as_ptr().add(i));
                for (sum, columns) in sums.iter_mut().zip(columns) {
                    *sum = S::fma(x, columns, *sum);
                }
            }
        }
        for (out, sums) in out[first..first + R].iter_mut().zip(sums) {
            for (out, sum) in out.iter_mut().zip(sums) {
                S::store(out.as_mut_ptr(), sum);
            }
        }
    }
}

/// The matrix after a block: `matrix[i] = weight matrix[i] + Σ_s keys[s][i] weights[s] updates[s]`. Scales
/// the updates.
///
/// # Safety
/// The ISA's features must be available.
#[inline(always)]
pub(super) unsafe fn advance<S: SimdIsa, const G: usize>(
    matrix: &mut [f32],
    keys: &KeyRows<'_>,
    updates: &mut [f32],
    stride: usize,
    weights: &[f32],
    weight: f32,
) {
    for (update, weight) in updates.chunks_mut(stride).zip(weights) {
        for update in update[..G * COLUMNS].chunks_exact_mut(COLUMNS) {
            // SAFETY: whole vectors.
            unsafe {
                let scaled = S::mul(S::splat(*weight), S::load(update.as_ptr()));
                S::store(update.as_mut_ptr(), scaled);
            }
        }
    }
    let (n_rows, matrix) = (matrix.len() / (G * COLUMNS), matrix.as_mut_ptr());
    // SAFETY: tiles are within the rows of each group.
    unsafe { in_tiles!(n_rows, advance_tile::<S, G>(matrix, keys, updates, stride, weight)) };
}

/// # Safety
/// The ISA's features must be available; `matrix` must have `first + R` rows of `G` groups.
#[inline(always)]
unsafe fn advance_tile<S: SimdIsa, const R: usize, const G: usize>(
    first: usize,
    matrix: *mut f32,
    keys: &KeyRows<'_>,
    updates: &[f32],
    stride: usize,
    weight: f32,
) {
    assert!(updates.len() >= (BLOCK - 1) * stride + G * COLUMNS);
    assert!(keys.iter().all(|key| key.len() >= first + R));
    // SAFETY: rows `first..first + R` of each group; sixteen updates of each.
    unsafe {
        let weight = S::splat(weight);
        let at = |r: usize, g: usize| matrix.wrapping_add(((first + r) * G + g) * COLUMNS);
        let mut sums = [[weight; G]; R];
        for (r, sums) in sums.iter_mut().enumerate() {
            for (g, sum) in sums.iter_mut().enumerate() {
                *sum = S::mul(weight, S::load(at(r, g)));
            }
        }
        for (s, key) in keys.iter().enumerate() {
            let mut update = [weight; G];
            for (g, update) in update.iter_mut().enumerate() {
                *update = S::load(updates.as_ptr().add(s * stride + g * COLUMNS));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let key = S::splat(*key.as_ptr().add(first + r));
                for (sum, update) in sums.iter_mut().zip(update) {
                    *sum = S::fma(key, update, *sum);
                }
            }
        }
        for (r, sums) in sums.into_iter().enumerate() {
            for (g, sum) in sums.into_iter().enumerate() {
                S::store(at(r, g), sum);
            }
        }
    }
}
