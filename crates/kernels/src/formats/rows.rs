//! Stored rows to f32 and back.

use super::floats::e4m3;
use super::{Elements, Format};
use crate::layout::{BLOCK, FloatLayout};

/// Writes the `out.len()` elements encoded in `bytes` to `out`: the same bits as in ggml.
///
/// # Panics
/// When the length of `bytes` is not that of `out.len()` elements of `format`.
pub fn dequantize_row(format: Format, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(
        format.bytes_of(out.len()),
        Some(bytes.len()),
        "{} elements of {} do not take {} bytes",
        out.len(),
        format.name(),
        bytes.len()
    );
    let (block_bytes, block_elements) = (format.block_bytes(), format.block_elements());
    match format.elements() {
        Elements::Floats(FloatLayout::F32) => floats::<4>(bytes, out, f32::from_le_bytes),
        Elements::Floats(FloatLayout::F16) => {
            floats::<2>(bytes, out, |b| half::f16::from_le_bytes(b).to_f32());
        }
        Elements::Floats(FloatLayout::BF16) => {
            floats::<2>(bytes, out, |b| half::bf16::from_le_bytes(b).to_f32());
        }
        Elements::Floats(layout @ (FloatLayout::Fp8 | FloatLayout::Mxfp8)) => {
            let scale = layout.scale().expect("E4M3 has scales");
            e4m3::decode(scale, block_bytes, bytes, out);
        }
        Elements::Codes(layout, split) => {
            let blocks = bytes.chunks_exact(block_bytes);
            for (stored, out) in blocks.zip(out.chunks_exact_mut(block_elements)) {
                for (b, out) in out.chunks_exact_mut(BLOCK).enumerate() {
                    split(stored, b).decode(layout, out);
                }
            }
        }
    }
}

fn floats<const N: usize>(bytes: &[u8], out: &mut [f32], decode: impl Fn([u8; N]) -> f32) {
    for (bytes, out) in bytes.as_chunks::<N>().0.iter().zip(out) {
        *out = decode(*bytes);
    }
}

/// Encodes `x` into `out` (exactly `format.bytes_of(x.len())` bytes) by plain round-to-nearest: for test data
/// and small models.
///
/// Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1 have the same blocks as with ggml's reference quantizers; all other
/// formats use one absmax or min-max scale a sub-block, without ggml's search, so their error is a little
/// larger. Models are quantized by [`crate::quant::quantize_rows`], which searches.
///
/// # Panics
/// When the lengths do not match.
pub fn quantize_row(format: Format, x: &[f32], out: &mut [u8]) {
    assert_eq!(format.bytes_of(x.len()), Some(out.len()), "{} elements of {}", x.len(), format.name());
    let encode = format.description().encode;
    let blocks = out.chunks_exact_mut(format.block_bytes());
    x.chunks_exact(format.block_elements()).zip(blocks).for_each(|(x, out)| encode(x, out));
}
