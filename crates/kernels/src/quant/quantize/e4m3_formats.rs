//! Encodes blocks of FP8 and MXFP8. Does not know panels.

use super::{extreme, inverse};
use crate::quant::e4m3::nearest;

/// Encodes a block as FP8 with the scale that makes its largest magnitude the largest number, 448.
pub(super) fn fp8(x: &[f32], out: &mut [u8]) {
    let scale = extreme(x).abs() / 448.0;
    out[..4].copy_from_slice(&scale.to_le_bytes());
    put_codes(x, scale, &mut out[4..]);
}

/// Encodes a block as MXFP8: the scale is 2^(e - 8) where the largest magnitude has the exponent `e`, as 448, the largest number, has 8.
pub(super) fn mxfp8(x: &[f32], out: &mut [u8]) {
    let largest = extreme(x).abs();
    out[0] = ((largest.to_bits() >> 23) as i32 - 8).clamp(1, 246) as u8;
    put_codes(x, f32::from_bits(u32::from(out[0]) << 23), &mut out[1..]);
}

fn put_codes(x: &[f32], scale: f32, out: &mut [u8]) {
    let per_x = inverse(scale);
    std::iter::zip(out, x).for_each(|(out, x)| *out = nearest(x * per_x));
}
