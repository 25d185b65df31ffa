//! PNG: every colour type and depth to RGB.

use std::io::Cursor;

use png::{BitDepth, ColorType, Decoder, Limits, Transformations};

use super::flatten::{rgb_of_grey, rgb_of_grey_alpha, rgb_of_rgba};
use super::orientation::orientation;
use super::{Decoded, ImageHeader};

/// Memory for the decoder's rows and for chunks beside the pixels. Larger chunks, such as colour profiles,
/// are not read.
const CHUNK_BYTES: usize = 8 << 20;

fn decoder(bytes: &[u8]) -> Decoder<Cursor<&[u8]>> {
    let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), Limits { bytes: CHUNK_BYTES });
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_transformations(Transformations::EXPAND);
    decoder
}

/// Width and height of the image.
pub(super) fn sides(bytes: &[u8]) -> Option<(u64, u64)> {
    let mut decoder = decoder(bytes);
    let info = decoder.read_header_info().ok()?;
    Some((info.width.into(), info.height.into()))
}

/// Decodes the pixels in their stored orientation.
pub(super) fn decode(bytes: &[u8], header: &ImageHeader) -> Option<Decoded> {
    let mut reader = decoder(bytes).read_info().ok()?;
    let mut pixels = vec![0; reader.output_buffer_size()?];
    let output = reader.next_frame(&mut pixels).ok()?;
    if (output.width, output.height) != (header.width, header.height) {
        return None;
    }
    pixels.truncate(output.buffer_size());
    let upright = reader.info().exif_metadata.as_deref().map_or(1, orientation);
    if output.bit_depth == BitDepth::Sixteen {
        pixels = narrow(&pixels, output.color_type);
    }
    let pixels = match output.color_type {
        ColorType::Grayscale => rgb_of_grey(&pixels),
        ColorType::GrayscaleAlpha => rgb_of_grey_alpha(&pixels),
        ColorType::Rgb => pixels,
        ColorType::Rgba => rgb_of_rgba(pixels),
        ColorType::Indexed => return None,
    };
    Some(Decoded { pixels, orientation: upright })
}

/// 16-bit values, big-endian, to 8 bits. Colours lose their low byte, as in Pillow; of grey, 257 levels
/// become one, where Pillow would clip all but the darkest to white.
fn narrow(pixels: &[u8], kind: ColorType) -> Vec<u8> {
    let is_grey = matches!(kind, ColorType::Grayscale | ColorType::GrayscaleAlpha);
    let narrowed = |pair: &[u8]| match is_grey {
        true => ((u32::from(u16::from_be_bytes([pair[0], pair[1]])) + 128) / 257) as u8,
        false => pair[0],
    };
    pixels.chunks_exact(2).map(narrowed).collect()
}
