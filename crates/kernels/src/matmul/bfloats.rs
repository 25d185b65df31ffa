//! The left side of a product in tiles: rows of activations rounded to bfloat16. Refuses to know weights.
//!
//! An element is off by a 512th of itself at most, where a byte of a block is off by half a step of the block's range: for
//! a bell-shaped block a quarter of the error.

use super::activations::{GROUP, Rows, whole};
use crate::quant::{BLOCK, PANEL};
use crate::simd::{Lane, Task};

/// Bytes of a group's block: [16][32] bfloat16 in the order of [`Lane::store_bfloats`].
pub(crate) const BFLOAT_RECORD: usize = GROUP * BLOCK * 2;

/// Bytes of a group's block in two parts: [part][16][32] bfloat16, see [`Lane::store_split`].
pub(crate) const SPLIT_RECORD: usize = 2 * BFLOAT_RECORD;

/// Rows to a group's records, in one part or two; rows that are not there stay what they were. In two parts columns keep
/// their own order, and what is left over is at most 2^-18 of an element.
pub(super) struct Round<'a, const PARTS: usize> {
    pub(super) rows: &'a Rows<'a>,
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
            let record = &mut self.out[b * PARTS * BFLOAT_RECORD..][..PARTS * BFLOAT_RECORD];
            let mut padded = [0.0; BLOCK];
            let x = whole(x, &mut padded).as_ptr();
            // SAFETY: 32 floats, 64 bytes of each part of the record for each of sixteen rows; the features are the
            // caller's word.
            unsafe {
                let (first, second) = (L::load(x), L::load(x.add(PANEL)));
                let high = record.as_mut_ptr().add(t * BLOCK * 2).cast::<u16>();
                if PARTS == 1 {
                    L::store_bfloats(high, first, second);
                } else {
                    let low = high.byte_add(BFLOAT_RECORD);
                    L::store_split(high, low, first);
                    L::store_split(high.add(PANEL), low.add(PANEL), second);
                }
            }
        });
    }
}
