//! BMP: palettes, run lengths and plain colours.

use zune_bmp::BmpDecoder;
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;

use super::flatten::{rgb_of_grey, rgb_of_rgba};
use super::{Decoded, ImageHeader};

fn decoder(bytes: &[u8]) -> Option<BmpDecoder<ZCursor<&[u8]>>> {
    let options = DecoderOptions::new_safe().set_max_width(1 << 20).set_max_height(1 << 20);
    let mut decoder = BmpDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().ok()?;
    Some(decoder)
}

/// Width and height of the image.
pub(super) fn sides(bytes: &[u8]) -> Option<(u64, u64)> {
    let (width, height) = decoder(bytes)?.dimensions()?;
    Some((width as u64, height as u64))
}

/// Decodes the pixels.
pub(super) fn decode(bytes: &[u8], header: &ImageHeader) -> Option<Decoded> {
    let mut decoder = decoder(bytes)?;
    if decoder.dimensions()? != (header.width as usize, header.height as usize) {
        return None;
    }
    let pixels = decoder.decode().ok()?;
    let pixels = match decoder.colorspace()? {
        ColorSpace::RGB => pixels,
        ColorSpace::RGBA => rgb_of_rgba(pixels),
        ColorSpace::Luma => rgb_of_grey(&pixels),
        _ => return None,
    };
    Some(Decoded { pixels, orientation: 1 })
}
