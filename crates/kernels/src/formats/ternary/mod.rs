//! Formats of the numbers -1, 0 and 1 with one scale for 256: TQ1_0 and TQ2_0.

pub(super) mod tq1_0;
pub(super) mod tq2_0;

use super::BlockCodes;
use super::bits::{pair, put_f16};
use super::range::{extreme, inverse};
use crate::layout::BLOCK;

/// A block of these codes whose scale, an f16, is the last of the stored block.
fn block(codes: [u8; BLOCK], stored: &[u8]) -> BlockCodes {
    let superscales = [pair(stored, stored.len() - 2), [0; 2]];
    BlockCodes { codes, scales: [[1, 0], [0; 2]], superscales }
}

/// Clears a stored block, writes its scale and returns a function from an element to its code.
fn codes<'x>(x: &'x [f32], out: &mut [u8]) -> impl Fn(usize) -> u8 + use<'x> {
    let d = extreme(x).abs();
    out.fill(0);
    put_f16(out, out.len() - 2, d);
    move |i: usize| ((x[i] * inverse(d)).round() as i32 + 1) as u8
}
