//! Blocks of MXFP4 as in ggml, built from codes and exponents as other libraries store them. Does not know
//! tensors.

use std::iter::once;

/// Bytes of the codes of a block.
pub const CODE_BYTES: usize = 16;

/// The bytes of a block: its exponent, then bytes with the codes of two columns that are sixteen apart.
/// `codes` has two of neighbouring columns in a byte.
pub fn block(exponent: u8, codes: &[u8]) -> impl Iterator<Item = u8> {
    let code = |i: usize| codes[i / 2] >> (4 * (i % 2)) & 15;
    once(exponent).chain((0..CODE_BYTES).map(move |i| code(i) | code(i + CODE_BYTES) << 4))
}
