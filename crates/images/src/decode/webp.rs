//! WebP: lossy and lossless; of an animation, the first frame.

use std::io::Cursor;

use image_webp::WebPDecoder;

use super::flatten::rgb_of_rgba;
use super::orientation::orientation;
use super::{Decoded, ImageHeader};

/// Memory for EXIF data.
const EXIF_BYTES: usize = 1 << 20;

/// Width and height of the image.
pub(super) fn sides(bytes: &[u8]) -> Option<(u64, u64)> {
    let (width, height) = WebPDecoder::new(Cursor::new(bytes)).ok()?.dimensions();
    Some((width.into(), height.into()))
}

/// Decodes the pixels in their stored orientation.
pub(super) fn decode(bytes: &[u8], header: &ImageHeader) -> Option<Decoded> {
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).ok()?;
    if decoder.dimensions() != (header.width, header.height) {
        return None;
    }
    decoder.set_memory_limit(EXIF_BYTES);
    let exif = decoder.exif_metadata().ok().flatten();
    let mut pixels = vec![0; decoder.output_buffer_size()?];
    decoder.read_image(&mut pixels).ok()?;
    let pixels = if decoder.has_alpha() { rgb_of_rgba(pixels) } else { pixels };
    Some(Decoded { pixels, orientation: exif.as_deref().map_or(1, orientation) })
}
