//! Softmax of a list of scores in memory. Does not know the meaning of scores.

use super::{load_part, store_part};
use crate::simd::{SimdIsa, exp};

/// Replaces each score by the exponential of its distance to the largest one. Returns the reciprocal of their
/// sum.
///
/// # Safety
/// The ISA's features must be available.
#[inline(always)]
pub(crate) unsafe fn exponentials<S: SimdIsa>(scores: &mut [f32]) -> f32 {
    let most = scores.iter().fold(f32::NEG_INFINITY, |most, score| most.max(*score));
    for scores in scores.chunks_mut(16) {
        // SAFETY: parts are at most sixteen elements.
        unsafe {
            let distance = S::sub(load_part::<S>(scores), S::splat(most));
            store_part::<S>(scores, exp::<S>(distance));
        }
    }
    1.0 / scores.iter().sum::<f32>()
}
