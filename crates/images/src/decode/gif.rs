//! GIF images: only the first frame is read.

use std::num::NonZeroU64;

use gif::{ColorOutput, DecodeOptions, Decoder, MemoryLimit};

use super::flatten::rgb_of_rgba;
use super::{Decoded, ImageHeader};

/// Memory for a frame whose header is not checked yet.
const FRAME_BYTES: u64 = 4 << 30;

fn decoder(bytes: &[u8], frame_bytes: u64) -> Option<Decoder<&[u8]>> {
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::RGBA);
    options.set_memory_limit(MemoryLimit::Bytes(NonZeroU64::new(frame_bytes)?));
    options.read_info(bytes).ok()
}

/// Width and height of the screen.
pub(super) fn sides(bytes: &[u8]) -> Option<(u64, u64)> {
    let decoder = decoder(bytes, FRAME_BYTES)?;
    Some((decoder.width().into(), decoder.height().into()))
}

/// The first frame on its screen, which is white around it. A frame that is not within the screen is refused.
pub(super) fn decode(bytes: &[u8], header: &ImageHeader) -> Option<Decoded> {
    let n_screen_bytes = u64::from(header.width) * u64::from(header.height) * 4;
    let mut decoder = decoder(bytes, n_screen_bytes)?;
    let (width, height) = (header.width as usize, header.height as usize);
    let frame = decoder.next_frame_info().ok()??;
    let (left, top) = (usize::from(frame.left), usize::from(frame.top));
    let (frame_width, frame_height) = (usize::from(frame.width), usize::from(frame.height));
    if frame_width == 0 || left + frame_width > width || top + frame_height > height {
        return None;
    }
    let mut pixels = vec![0; frame_width * frame_height * 4];
    decoder.read_into_buffer(&mut pixels).ok()?;
    let pixels = rgb_of_rgba(pixels);
    if (frame_width, frame_height) == (width, height) {
        return Some(Decoded { pixels, orientation: 1 });
    }
    let mut screen = vec![255; width * height * 3];
    for (y, row) in pixels.chunks_exact(frame_width * 3).enumerate() {
        screen[((top + y) * width + left) * 3..][..row.len()].copy_from_slice(row);
    }
    Some(Decoded { pixels: screen, orientation: 1 })
}
