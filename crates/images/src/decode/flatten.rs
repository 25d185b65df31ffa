//! Pixels of other kinds to RGB, in place: transparency is laid over white.

/// Opaque pixels of `N` channels, the first three RGB, to RGB.
pub(super) fn rgb_of_rgba(mut pixels: Vec<u8>) -> Vec<u8> {
    let n_pixels = pixels.len() / 4;
    for at in 0..n_pixels {
        let [red, green, blue, alpha] = [0, 1, 2, 3].map(|channel| pixels[at * 4 + channel]);
        for (channel, value) in [red, green, blue].into_iter().enumerate() {
            pixels[at * 3 + channel] = over_white(value, alpha);
        }
    }
    pixels.truncate(n_pixels * 3);
    pixels
}

/// Grey pixels with alpha to RGB.
pub(super) fn rgb_of_grey_alpha(pixels: &[u8]) -> Vec<u8> {
    pixels.chunks_exact(2).flat_map(|pixel| [over_white(pixel[0], pixel[1]); 3]).collect()
}

/// Grey pixels to RGB.
pub(super) fn rgb_of_grey(pixels: &[u8]) -> Vec<u8> {
    pixels.iter().flat_map(|grey| [*grey; 3]).collect()
}

/// A value over white, with the arithmetic of Pillow's `alpha_composite` for an opaque background.
fn over_white(value: u8, alpha: u8) -> u8 {
    const WHITE: u32 = 255;
    let share = u32::from(alpha) * 128;
    let sum = u32::from(value) * share + WHITE * (WHITE * 128 - share) + (0x80 << 7);
    ((((sum >> 8) + sum) >> 8) >> 7) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transparency_is_white() {
        assert_eq!(rgb_of_rgba(vec![10, 20, 30, 0, 10, 20, 30, 255]), [255, 255, 255, 10, 20, 30]);
        assert_eq!(rgb_of_grey_alpha(&[0, 128, 255, 3]), [127, 127, 127, 255, 255, 255]);
        assert!((0..=255).all(|value| over_white(value, 255) == value && over_white(value, 0) == 255));
    }
}
