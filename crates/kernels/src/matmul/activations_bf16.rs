//! Rounds activations to bf16 for AMX tiles. Does not know weights.
//!
//! The relative error of an element is at most 1/512, where int8 has an error of half a step of its block's range: for normally
//! distributed blocks bf16 has a quarter of the error.

use super::activation_rows::{Rows, whole};
use crate::layout::{BLOCK, PANEL, ROW_BYTES};
use crate::simd::{AmxIsa, AmxKernel, CheckedKernel};

/// Rounds tokens into a group's records, in one bf16 part or two; entries of absent tokens are not written. One part has its columns
/// in the order of [`AmxIsa::store_bf16_pairs`]. Two parts (see [`AmxIsa::store_split`]) keep the column order, and their error is
/// at most 2^-18 of an element.
pub(super) struct Round<'a, const PARTS: usize> {
    pub(super) rows: &'a Rows<'a>,
    /// Number of tokens that a record has room for.
    pub(super) n_tokens: usize,
    /// One record per block, or empty.
    pub(super) out: &'a mut [u8],
}

// SAFETY: slices only, and their lengths are checked.
unsafe impl<const PARTS: usize> CheckedKernel for Round<'_, PARTS> {}

impl<const PARTS: usize> AmxKernel for Round<'_, PARTS> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: AmxIsa>(self) {
        if self.out.is_empty() {
            return;
        }
        self.rows.each_block(|t, b, x| {
            let row = &mut self.out[(b * self.n_tokens + t) * PARTS * ROW_BYTES..][..PARTS * ROW_BYTES];
            let mut padded = [0.0; BLOCK];
            let x = whole(x, &mut padded).as_ptr();
            // SAFETY: 32 floats, 64 bytes of each part of a row; the caller guarantees the features.
            unsafe {
                let (first, second) = (S::load(x), S::load(x.add(PANEL)));
                let high = row.as_mut_ptr().cast::<u16>();
                if PARTS == 1 {
                    S::store_bf16_pairs(high, first, second);
                } else {
                    let low = high.byte_add(ROW_BYTES);
                    S::store_split(high, low, first);
                    S::store_split(high.add(PANEL), low.add(PANEL), second);
                }
            }
        });
    }
}

/// Rounds tokens into a group's records in two bf16 parts as [`Round`] with two, but with the columns of both in the order of
/// [`AmxIsa::store_bf16_pairs`].
pub(super) struct RoundPairs<'a> {
    pub(super) rows: &'a Rows<'a>,
    /// Number of tokens that a record has room for.
    pub(super) n_tokens: usize,
    /// One record per block, or empty.
    pub(super) out: &'a mut [u8],
}

// SAFETY: slices only, and their lengths are checked.
unsafe impl CheckedKernel for RoundPairs<'_> {}

impl AmxKernel for RoundPairs<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: AmxIsa>(self) {
        if self.out.is_empty() {
            return;
        }
        self.rows.each_block(|t, b, x| {
            let row = &mut self.out[(b * self.n_tokens + t) * 2 * ROW_BYTES..][..2 * ROW_BYTES];
            let (mut padded, mut near) = ([0.0; BLOCK], [0u16; BLOCK]);
            let x = whole(x, &mut padded).as_ptr();
            // SAFETY: 32 floats, 64 bytes of each part of a row, 32 numbers in `near`; the caller guarantees the features.
            unsafe {
                let high = row.as_mut_ptr().cast::<u16>();
                let (first, second) = (S::load(x), S::load(x.add(PANEL)));
                S::store_bf16_pairs(high, first, second);
                let near = near.as_mut_ptr();
                S::store_bf16(near, first);
                S::store_bf16(near.add(PANEL), second);
                let rest = |x: S::F, near: *const u16| S::sub(x, S::load_bf16(near));
                S::store_bf16_pairs(
                    high.byte_add(ROW_BYTES),
                    rest(first, near),
                    rest(second, near.add(PANEL)),
                );
            }
        });
    }
}
