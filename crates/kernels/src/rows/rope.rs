//! Rotary embedding. Does not know where angles come from.

use super::{Groups, each_group, load_part, store_part};
use crate::quant::PANEL;
use crate::reference::{self, RopeStyle};
use crate::simd::{Kernel, SimdIsa};
use crate::threads::ThreadPool;

/// Rotates every group (head) of row `i` by the angles `cos[positions[i]]`, `sin[positions[i]]`, `n_pairs` each (arXiv:2104.09864).
///
/// # Panics
/// When there is no position for a row, no `n_pairs` angles for a position, or a group is too narrow.
pub fn rope(
    x: &mut [f32],
    groups: Groups,
    (cos, sin): (&[f32], &[f32]),
    n_pairs: usize,
    positions: &[u32],
    style: RopeStyle,
    pool: &ThreadPool,
) {
    let n_rows = groups.rows_of(x.len());
    assert!(
        positions.len() == n_rows && sin.len() == cos.len(),
        "{} positions of {n_rows} rows",
        positions.len()
    );
    each_group(x, groups, pool, |i, head| {
        let angles = positions[i] as usize * n_pairs..(positions[i] as usize + 1) * n_pairs;
        let (cos, sin) = (&cos[angles.clone()], &sin[angles]);
        match style {
            // SAFETY: the pool's ISA is available.
            RopeStyle::Half => unsafe { pool.isa().run(RotateHalves { head, cos, sin }) },
            RopeStyle::Interleaved => reference::rope(head, cos, sin, style),
        }
    });
}

/// One head whose pairs are elements of its two halves; what is beyond them stays as it is.
struct RotateHalves<'a> {
    head: &'a mut [f32],
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Kernel for RotateHalves<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        let (first, rest) = self.head.split_at_mut(self.cos.len());
        let pairs = first.chunks_mut(PANEL).zip(rest.chunks_mut(PANEL));
        let angles = self.cos.chunks(PANEL).zip(self.sin.chunks(PANEL));
        for ((a, b), (cos, sin)) in pairs.zip(angles) {
            let b = &mut b[..cos.len()];
            // SAFETY: parts are at most sixteen elements.
            unsafe {
                let (x, y) = (load_part::<S>(a), load_part::<S>(b));
                let (cos, sin) = (load_part::<S>(cos), load_part::<S>(sin));
                store_part::<S>(a, S::sub(S::mul(x, cos), S::mul(y, sin)));
                store_part::<S>(b, S::add(S::mul(y, cos), S::mul(x, sin)));
            }
        }
    }
}
