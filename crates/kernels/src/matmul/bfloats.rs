//! The left side of a product in tiles: rows of activations rounded to bfloat16. Refuses to know weights.
//!
//! An element is off by a 512th of itself at most, where a byte of a block is off by half a step of the block's range: for
//! a bell-shaped block a quarter of the error.

use super::activations::{Rows, whole};
use crate::quant::{BLOCK, PANEL};
use crate::simd::{Lane, Task};

/// Bytes of a token's block, or of a part of it: a group's is [token][part][32] bfloat16.
pub(crate) const ROW_BYTES: usize = BLOCK * 2;

/// Rows to a group's records, in one part or two; rows that are not there stay what they were. In one part columns are in
/// the order of [`Lane::store_bfloats`]. In two (see [`Lane::store_split`]) they keep their own, and what is left over is at
/// most 2^-18 of an element.
pub(super) struct Round<'a, const PARTS: usize> {
    pub(super) rows: &'a Rows<'a>,
    /// Tokens that a record has room for.
    pub(super) n_tokens: usize,
    /// One record a block, or empty.
    pub(super) out: &'a mut [u8],
}

impl<const PARTS: usize> Task for Round<'_, PARTS> {
    type Output = ();
    const USES_TILES: bool = true;

    #[inline(always)]
    unsafe fn run<L: Lane>(self) {
        if !L::HAS_TILES || self.out.is_empty() {
            return;
        }
        self.rows.each_block(|t, b, x| {
            let row = &mut self.out[(b * self.n_tokens + t) * PARTS * ROW_BYTES..][..PARTS * ROW_BYTES];
            let mut padded = [0.0; BLOCK];
            let x = whole(x, &mut padded).as_ptr();
            // SAFETY: 32 floats, 64 bytes of each part of a row; the features are the caller's word.
            unsafe {
                let (first, second) = (L::load(x), L::load(x.add(PANEL)));
                let high = row.as_mut_ptr().cast::<u16>();
                if PARTS == 1 {
                    L::store_bfloats(high, first, second);
                } else {
                    let low = high.byte_add(ROW_BYTES);
                    L::store_split(high, low, first);
                    L::store_split(high.add(PANEL), low.add(PANEL), second);
                }
            }
        });
    }
}
