//! Stored rows to f32: float formats and blocks of 32. Does not know where the bytes come from.
//!
//! Layouts are those of ggml-common.h. The order of the f32 operations is the one ggml uses, so that the results
//! are the same bits.

use super::dequantize_k as k;
use super::{E2M1_VALUES, Format, IQ4_VALUES, e4m3, f16_at, grids};
use crate::layout::power_of_two;

/// Writes the `out.len()` elements encoded in `bytes` to `out`.
///
/// # Panics
/// When `bytes` is not exactly as long as `out.len()` elements of `format` take.
pub fn dequantize_row(format: Format, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(
        format.bytes_of(out.len()),
        Some(bytes.len()),
        "{} elements of {} do not take {} bytes",
        out.len(),
        format.name(),
        bytes.len()
    );
    let block: fn(&[u8], &mut [f32]) = match format {
        Format::F32 => return floats::<4>(bytes, out, f32::from_le_bytes),
        Format::F16 => return floats::<2>(bytes, out, |b| half::f16::from_le_bytes(b).to_f32()),
        Format::BF16 => return floats::<2>(bytes, out, |b| half::bf16::from_le_bytes(b).to_f32()),
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
        Format::FP8 | Format::MXFP8 => return e4m3::dequantize(format, bytes, out),
        _ => return grids::dequantize(format, bytes, out),
    };
    let blocks = bytes.chunks_exact(format.block_bytes());
    for (bytes, out) in blocks.zip(out.chunks_exact_mut(format.block_elements())) {
        block(bytes, out);
    }
}

fn floats<const N: usize>(bytes: &[u8], out: &mut [f32], decode: impl Fn([u8; N]) -> f32) {
    for (bytes, out) in bytes.as_chunks::<N>().0.iter().zip(out) {
        *out = decode(*bytes);
    }
}

/// `x = d q`; f16 d, 32 × i8 q.
fn q8_0(b: &[u8], out: &mut [f32]) {
    let d = f16_at(b, 0);
    for (out, &q) in out.iter_mut().zip(&b[2..]) {
        *out = f32::from(q as i8) * d;
    }
}

/// Applies `low`/`high` to the 16 bytes of nibbles: low nibbles are elements 0..16, high ones 16..32.
fn nibbles(qs: &[u8], out: &mut [f32], value: impl Fn(u8, usize) -> f32) {
    for (j, &q) in qs.iter().enumerate() {
        out[j] = value(q & 15, j);
        out[j + 16] = value(q >> 4, j + 16);
    }
}

/// `x = d (q - 8)`; f16 d, 16 bytes of nibbles.
fn q4_0(b: &[u8], out: &mut [f32]) {
    let d = f16_at(b, 0);
    nibbles(&b[2..], out, |q, _| f32::from(q as i8 - 8) * d);
}

/// `x = d q + m`; f16 d, f16 m, 16 bytes of nibbles.
fn q4_1(b: &[u8], out: &mut [f32]) {
    let (d, m) = (f16_at(b, 0), f16_at(b, 2));
    nibbles(&b[4..], out, |q, _| f32::from(q) * d + m);
}

/// The fifth bits of a Q5 block: bit `j` belongs to element `j`.
fn fifth_bits(b: &[u8], at: usize) -> impl Fn(usize) -> u8 {
    let bits = u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
    move |j| ((bits >> j & 1) as u8) << 4
}

/// `x = d (q - 16)`; f16 d, 32 fifth bits, 16 bytes of nibbles.
fn q5_0(b: &[u8], out: &mut [f32]) {
    let (d, high) = (f16_at(b, 0), fifth_bits(b, 2));
    nibbles(&b[6..], out, |q, j| f32::from((q | high(j)) as i8 - 16) * d);
}

/// `x = d q + m`; f16 d, f16 m, 32 fifth bits, 16 bytes of nibbles.
fn q5_1(b: &[u8], out: &mut [f32]) {
    let (d, m, high) = (f16_at(b, 0), f16_at(b, 2), fifth_bits(b, 4));
    nibbles(&b[8..], out, |q, j| f32::from(q | high(j)) * d + m);
}

/// `x = d values[q]`; f16 d, 16 bytes of nibbles into the code book.
fn iq4_nl(b: &[u8], out: &mut [f32]) {
    let d = f16_at(b, 0);
    nibbles(&b[2..], out, |q, _| d * f32::from(IQ4_VALUES[q as usize]));
}

/// `x = 2^(e - 128) values[q]`; u8 e, 16 bytes of nibbles into the code book of doubled E2M1 numbers (OCP Microscaling Formats 1.0).
fn mxfp4(b: &[u8], out: &mut [f32]) {
    let d = power_of_two(b[0]);
    nibbles(&b[1..], out, |q, _| d * f32::from(E2M1_VALUES[q as usize]));
}
