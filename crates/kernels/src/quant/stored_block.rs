//! Codes and scales of one stored block, as packing takes them.

use crate::layout::BLOCK;

/// One row's block of 32.
pub(super) struct BlockCodes {
    /// Unsigned codes of the layout's bits.
    pub(super) codes: [u8; BLOCK],
    /// The scales' bytes of this row in their stored types: up to two values of up to two bytes.
    pub(super) scales: [[u8; 2]; 2],
    /// d and dmin of the superblock, f16.
    pub(super) superscales: [[u8; 2]; 2],
}
