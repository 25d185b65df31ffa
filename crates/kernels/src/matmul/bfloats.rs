//! The left side of a product in tiles: rows of activations rounded to bfloat16. Refuses to know weights.
//!
//! Codes of at most eight bits are exact in bfloat16, and so are their products with such activations in f32. An element
//! is off by a 512th of itself at most, where a byte of a block is off by half a step of the block's range: for a
//! bell-shaped block a quarter of the error.

use super::activations::{GROUP, Rows, whole};
use crate::quant::{BLOCK, PANEL};
use crate::simd::{Lane, Task};

/// Bytes of a group's block: [16][32] bfloat16 in the order of [`Lane::store_bfloats`], then the sums below.
pub(crate) const BFLOAT_RECORD: usize = GROUP * BLOCK * 2 + 3 * GROUP * 4;
/// f32 `Σ x` of the rounded elements of sixteen tokens: what a weight block's min is multiplied by.
pub(crate) const BLOCK_SUM_AT: usize = GROUP * BLOCK * 2;
/// The sums of the two half blocks.
pub(crate) const HALF_SUMS_AT: usize = BLOCK_SUM_AT + GROUP * 4;

/// Rows to a group's records; rows that are not there stay what they were.
pub(super) struct Round<'a> {
    pub(super) rows: &'a Rows<'a>,
    /// One record a block, or empty.
    pub(super) out: &'a mut [u8],
    /// Whether sums are wanted.
    pub(super) sums: bool,
}

impl Task for Round<'_> {
    type Output = ();
    const USES_TILES: bool = true;

    #[inline(always)]
    unsafe fn run<L: Lane>(self) {
        if !L::HAS_TILES || self.out.is_empty() {
            return;
        }
        self.rows.each_block(|t, b, x| {
            let record = &mut self.out[b * BFLOAT_RECORD..][..BFLOAT_RECORD];
            let mut padded = [0.0; BLOCK];
            let x = whole(x, &mut padded).as_ptr();
            // SAFETY: 32 floats, 64 bytes of the record for each of sixteen rows; the features are the caller's word.
            let sums = unsafe {
                let out = record.as_mut_ptr().add(t * BLOCK * 2).cast();
                L::store_bfloats(out, L::load(x), L::load(x.add(PANEL)));
                if !self.sums {
                    return;
                }
                L::sum_bfloats(out)
            };
            let mut put = |at: usize, sum: f32| record[at + t * 4..][..4].copy_from_slice(&sum.to_le_bytes());
            put(BLOCK_SUM_AT, sums[0] + sums[1]);
            put(HALF_SUMS_AT, sums[0]);
            put(HALF_SUMS_AT + GROUP * 4, sums[1]);
        });
    }
}
