//! Quantizes f32 rows by plain round-to-nearest, without a search for better scales: for test data and small models.

mod e4m3_formats;
mod grid_formats;
pub(super) mod k_formats;

use super::{E2M1_VALUES, Format, IQ4_VALUES};
use k_formats as k;

/// Encodes `x` into `out` (exactly `format.bytes_of(x.len())` bytes).
///
/// Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1 give the same blocks as ggml's reference quantizers; all others use one
/// absmax or min-max scale a sub-block, without ggml's search, so their error is a little larger. Models are quantized
/// by [`super::quantize_rows`], which searches.
///
/// # Panics
/// When the lengths do not belong together.
pub fn quantize_row(format: Format, x: &[f32], out: &mut [u8]) {
    assert_eq!(format.bytes_of(x.len()), Some(out.len()), "{} elements of {}", x.len(), format.name());
    let block: fn(&[f32], &mut [u8]) = match format {
        Format::F32 => |x, out| out.copy_from_slice(&x[0].to_le_bytes()),
        Format::F16 => |x, out| put_f16(out, 0, x[0]),
        Format::BF16 => |x, out| out.copy_from_slice(&half::bf16::from_f32(x[0]).to_le_bytes()),
        Format::Q8_0 => q8_0,
        Format::Q4_0 => q4_0,
        Format::Q4_1 => q4_1,
        Format::Q5_0 => q5_0,
        Format::Q5_1 => q5_1,
        Format::Q2_K => k::q2_k,
        Format::Q3_K => k::q3_k,
        Format::Q4_K => k::q4_k,
        Format::Q5_K => k::q5_k,
        Format::Q6_K => k::q6_k,
        Format::IQ4_NL => iq4_nl,
        Format::IQ4_XS => k::iq4_xs,
        Format::MXFP4 => mxfp4,
        Format::FP8 => e4m3_formats::fp8,
        Format::MXFP8 => e4m3_formats::mxfp8,
        _ => {
            let blocks = out.chunks_exact_mut(format.block_bytes());
            let blocks = x.chunks_exact(format.block_elements()).zip(blocks);
            return blocks.for_each(|(x, out)| grid_formats::block(format, x, out));
        }
    };
    let blocks = out.chunks_exact_mut(format.block_bytes());
    for (x, out) in x.chunks_exact(format.block_elements()).zip(blocks) {
        block(x, out);
    }
}

pub(super) fn put_f16(out: &mut [u8], at: usize, x: f32) {
    out[at..at + 2].copy_from_slice(&half::f16::from_f32(x).to_le_bytes());
}

/// `1 / d`, or 0 where the block is all zeros.
pub(super) fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// The value of largest magnitude, with its sign.
pub(super) fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |best: f32, &v| if v.abs() > best.abs() { v } else { best })
}

pub(super) fn min_max(x: &[f32]) -> (f32, f32) {
    x.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(lo, hi), &v| (lo.min(v), hi.max(v)))
}

fn q8_0(x: &[f32], out: &mut [u8]) {
    let d = extreme(x).abs() / 127.0;
    put_f16(out, 0, d);
    for (out, v) in out[2..].iter_mut().zip(x) {
        *out = (v * inverse(d)).round() as i8 as u8;
    }
}

/// Nibbles of 32 codes: element `j` low, element `j + 16` high.
#[inline(always)]
pub(super) fn put_nibbles(out: &mut [u8], code: impl Fn(usize) -> u8) {
    for (j, out) in out.iter_mut().enumerate() {
        *out = code(j) & 15 | (code(j + 16) & 15) << 4;
    }
}

#[inline(always)]
pub(super) fn put_fifth_bits(out: &mut [u8], code: impl Fn(usize) -> u8) {
    let bits = (0..32).fold(0u32, |bits, j| bits | u32::from(code(j) >> 4 & 1) << j);
    out.copy_from_slice(&bits.to_le_bytes());
}

fn q4_0(x: &[f32], out: &mut [u8]) {
    let d = extreme(x) / -8.0;
    put_f16(out, 0, d);
    put_nibbles(&mut out[2..], |j| (x[j] * inverse(d) + 8.5).clamp(0.0, 15.0) as u8);
}

fn q4_1(x: &[f32], out: &mut [u8]) {
    let (min, max) = min_max(x);
    let d = (max - min) / 15.0;
    put_f16(out, 0, d);
    put_f16(out, 2, min);
    put_nibbles(&mut out[4..], |j| ((x[j] - min) * inverse(d) + 0.5).min(15.0) as u8);
}

fn q5_0(x: &[f32], out: &mut [u8]) {
    let d = extreme(x) / -16.0;
    put_f16(out, 0, d);
    let code = |j: usize| (x[j] * inverse(d) + 16.5).clamp(0.0, 31.0) as u8;
    put_fifth_bits(&mut out[2..6], code);
    put_nibbles(&mut out[6..], code);
}

fn q5_1(x: &[f32], out: &mut [u8]) {
    let (min, max) = min_max(x);
    let d = (max - min) / 31.0;
    put_f16(out, 0, d);
    put_f16(out, 2, min);
    let code = |j: usize| ((x[j] - min) * inverse(d) + 0.5).min(31.0) as u8;
    put_fifth_bits(&mut out[4..8], code);
    put_nibbles(&mut out[8..], code);
}

/// The index of the code-book value nearest to `x`.
pub(super) fn nearest_iq4(x: f32) -> u8 {
    nearest(&IQ4_VALUES, x)
}

fn nearest(values: &[i8; 16], x: f32) -> u8 {
    let distance = |i: &usize| (x - f32::from(values[*i])).abs();
    (0..16).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(0) as u8
}

fn iq4_nl(x: &[f32], out: &mut [u8]) {
    let d = extreme(x) / f32::from(IQ4_VALUES[0]);
    put_f16(out, 0, d);
    put_nibbles(&mut out[2..], |j| nearest_iq4(x[j] * inverse(d)));
}

/// The scale is the power of two with which the largest magnitude has the largest exponent of the code book.
fn mxfp4(x: &[f32], out: &mut [u8]) {
    let largest = extreme(x).abs();
    // Twice the numbers of the code book end with 8 and 12: exponent 3.
    let exponent = ((largest.to_bits() >> 23) as i32 - 127 - 3 + 128).clamp(0, 254);
    out[0] = exponent as u8;
    let d = crate::layout::power_of_two(out[0]);
    put_nibbles(&mut out[1..], |j| nearest(&E2M1_VALUES, x[j] * inverse(d)));
}
