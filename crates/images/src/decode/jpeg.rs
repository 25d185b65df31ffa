//! JPEG: baseline and progressive, grey, colour and CMYK.

use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use super::orientation::orientation;
use super::{Decoded, ImageHeader};

/// Maximum passes of a progressive image, each of which may touch every pixel. Cameras and libraries write
/// ten.
const MAX_SCANS: usize = 64;

fn decoder(bytes: &[u8]) -> JpegDecoder<ZCursor<&[u8]>> {
    let options = DecoderOptions::new_safe()
        .set_strict_mode(false)
        .jpeg_set_max_scans(MAX_SCANS)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    JpegDecoder::new_with_options(ZCursor::new(bytes), options)
}

/// Width and height of the image.
pub(super) fn sides(bytes: &[u8]) -> Option<(u64, u64)> {
    let mut decoder = decoder(bytes);
    decoder.decode_headers().ok()?;
    let (width, height) = decoder.dimensions()?;
    Some((width as u64, height as u64))
}

/// Decodes the pixels in their stored orientation.
pub(super) fn decode(bytes: &[u8], header: &ImageHeader) -> Option<Decoded> {
    let mut decoder = decoder(bytes);
    let pixels = decoder.decode().ok()?;
    if decoder.dimensions()? != (header.width as usize, header.height as usize) {
        return None;
    }
    Some(Decoded { pixels, orientation: decoder.exif().map_or(1, |exif| orientation(exif)) })
}
