//! Rotary embedding. Does not know where angles come from.

use super::{Columns, each_group, load_part, store_part};
use crate::quant::PANEL;
use crate::reference::{self, RopeStyle};
use crate::simd::{CheckedKernel, Kernel, SimdIsa};
use crate::threads::ThreadPool;

/// Rotates every group (head) of row `i` by `angles(i)`: cosines and sines, one of each for a pair
/// (arXiv:2104.09864).
///
/// # Panics
/// When there are more cosines than sines, or a group is too narrow for them.
pub fn rope<'a>(
    x: &mut [f32],
    stride: usize,
    columns: Columns,
    angles: impl Fn(usize) -> (&'a [f32], &'a [f32]) + Sync,
    style: RopeStyle,
    pool: &ThreadPool,
) {
    each_group(x, stride, columns, pool, |i, head| {
        let (cos, sin) = angles(i);
        assert!(
            sin.len() == cos.len() && head.len() >= 2 * cos.len(),
            "{} pairs of {}",
            cos.len(),
            head.len()
        );
        match style {
            RopeStyle::HalfSplit => pool.isa().run_checked(RotateHalves { head, cos, sin }),
            RopeStyle::Interleaved => reference::rope(head, cos, sin, style),
        }
    });
}

/// Rotation of one head whose pairs are elements of its two halves; the elements beyond them stay as they
/// are.
struct RotateHalves<'a> {
    head: &'a mut [f32],
    cos: &'a [f32],
    sin: &'a [f32],
}

// SAFETY: slices only, and their lengths are checked.
unsafe impl CheckedKernel for RotateHalves<'_> {}

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
