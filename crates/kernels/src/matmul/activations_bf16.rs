//! Rounds activations to bf16 for AMX tiles. Does not know weights.
//!
//! The relative error of an element is at most 1/512, where int8 has an error of half a step of its block's
//! range: for normally distributed blocks bf16 has a quarter of the error.

use super::activation_rows::{Rows, whole};
use crate::layout::{BLOCK, PANEL, ROW_BYTES};
use crate::simd::{AmxIsa, AmxKernel, CheckedKernel};

/// Rounds tokens into a group's records, in one bf16 part or two, whose error is at most 2^-18 of an element;
/// entries of absent tokens are not written. `IN_PAIRS` says whether the columns are in the order of
/// [`AmxIsa::store_bf16_pairs`], as one part always has them, or keep their own (see
/// [`AmxIsa::store_split`]).
pub(super) struct Round<'a, const PARTS: usize, const IN_PAIRS: bool> {
    pub(super) rows: &'a Rows<'a>,
    /// Number of tokens that a record has room for.
    pub(super) n_tokens: usize,
    /// Records, one per block, or empty.
    pub(super) out: &'a mut [u8],
}

// SAFETY: slices only, and their lengths are checked.
unsafe impl<const PARTS: usize, const IN_PAIRS: bool> CheckedKernel for Round<'_, PARTS, IN_PAIRS> {}

impl<const PARTS: usize, const IN_PAIRS: bool> AmxKernel for Round<'_, PARTS, IN_PAIRS> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: AmxIsa>(self) {
        if self.out.is_empty() {
            return;
        }
        self.rows.each_block(|t, b, x| {
            let row = &mut self.out[(b * self.n_tokens + t) * PARTS * ROW_BYTES..][..PARTS * ROW_BYTES];
            let (mut padded, mut near) = ([0.0; BLOCK], [0u16; BLOCK]);
            let x = whole(x, &mut padded).as_ptr();
            // SAFETY: 32 floats, 64 bytes of each part of a row, 32 numbers in `near`; the caller guarantees the features.
            unsafe {
                let (first, second) = (S::load(x), S::load(x.add(PANEL)));
                let high = row.as_mut_ptr().cast::<u16>();
                if !IN_PAIRS {
                    let low = high.byte_add(ROW_BYTES);
                    S::store_split(high, low, first);
                    S::store_split(high.add(PANEL), low.add(PANEL), second);
                    return;
                }
                S::store_bf16_pairs(high, first, second);
                if PARTS == 2 {
                    let near = near.as_mut_ptr();
                    S::store_bf16(near, first);
                    S::store_bf16(near.add(PANEL), second);
                    let rest = |x: S::F, near: *const u16| S::sub(x, S::load_bf16(near));
                    let low = high.byte_add(ROW_BYTES);
                    S::store_bf16_pairs(low, rest(first, near), rest(second, near.add(PANEL)));
                }
            }
        });
    }
}
