//! Decoding of files within bounds: the type is found from the content, and the sizes in a header are checked
//! before memory is taken for them.

mod bmp;
mod flatten;
mod gif;
mod jpeg;
mod orientation;
mod png;
mod webp;

use crate::error::ImageError;
use crate::image_format::ImageFormat;
use crate::rgb_image::RgbImage;

/// Bounds of decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeLimits {
    /// Maximum bytes of a file.
    pub max_bytes: usize,
    /// Maximum pixels of a side.
    pub max_side: u32,
    /// Maximum pixels of an image.
    pub max_pixels: u64,
}

impl Default for DecodeLimits {
    /// 20 MiB, 16,384 pixels a side, and 2^25 pixels: more than a camera's 32 megapixels.
    fn default() -> Self {
        Self { max_bytes: 20 << 20, max_side: 16_384, max_pixels: 1 << 25 }
    }
}

impl DecodeLimits {
    fn check(&self, width: u64, height: u64) -> Result<(u32, u32), ImageError> {
        let of = |side: u64| u32::try_from(side).unwrap_or(u32::MAX);
        let (width, height) = (of(width), of(height));
        if width == 0 || height == 0 {
            return Err(ImageError::Empty);
        }
        if width.max(height) > self.max_side {
            return Err(ImageError::TooLong { width, height, limit: self.max_side });
        }
        if u64::from(width) * u64::from(height) > self.max_pixels {
            return Err(ImageError::TooManyPixels { width, height, limit: self.max_pixels });
        }
        Ok((width, height))
    }
}

/// Data of an image in its file's header, before it is decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageHeader {
    /// Format of the file.
    pub format: ImageFormat,
    /// Stored width in pixels, before EXIF's orientation.
    pub width: u32,
    /// Stored height in pixels, before EXIF's orientation.
    pub height: u32,
}

impl ImageHeader {
    /// Bytes of memory that decoding takes at most at once, the upright image included.
    pub fn decode_bytes(&self) -> u64 {
        /// A progressive JPEG: coefficients of two bytes for three channels, their pixels, and the turned
        /// image; a PNG of 16 bits: eight bytes and the upright image.
        const PIXEL_BYTES: u64 = 12;
        /// Memory for the decoder's tables and rows.
        const FIXED_BYTES: u64 = 1 << 20;
        u64::from(self.width) * u64::from(self.height) * PIXEL_BYTES + FIXED_BYTES
    }
}

/// Reads the header of a file and checks its sizes.
///
/// # Errors
/// [`ImageError`]: not one of the formats, damaged, or beyond `limits`.
pub fn read_header(bytes: &[u8], limits: &DecodeLimits) -> Result<ImageHeader, ImageError> {
    if bytes.len() > limits.max_bytes {
        return Err(ImageError::TooManyBytes { n_bytes: bytes.len(), limit: limits.max_bytes });
    }
    let format = ImageFormat::of(bytes).ok_or(ImageError::UnknownFormat)?;
    let (width, height) = match format {
        ImageFormat::Png => png::sides(bytes),
        ImageFormat::Jpeg => jpeg::sides(bytes),
        ImageFormat::Webp => webp::sides(bytes),
        ImageFormat::Gif => gif::sides(bytes),
        ImageFormat::Bmp => bmp::sides(bytes),
    }
    .ok_or(ImageError::Damaged(format))?;
    let (width, height) = limits.check(width, height)?;
    Ok(ImageHeader { format, width, height })
}

/// Decodes a file to upright RGB pixels: EXIF's orientation is applied, transparency is laid over white, grey
/// becomes three equal channels, and of several frames the first counts.
///
/// # Errors
/// [`ImageError`]: not one of the formats, damaged, or beyond `limits`.
pub fn decode(bytes: &[u8], limits: &DecodeLimits) -> Result<RgbImage, ImageError> {
    let header = read_header(bytes, limits)?;
    let decoded = match header.format {
        ImageFormat::Png => png::decode(bytes, &header),
        ImageFormat::Jpeg => jpeg::decode(bytes, &header),
        ImageFormat::Webp => webp::decode(bytes, &header),
        ImageFormat::Gif => gif::decode(bytes, &header),
        ImageFormat::Bmp => bmp::decode(bytes, &header),
    };
    let Decoded { pixels, orientation } = decoded.ok_or(ImageError::Damaged(header.format))?;
    let image = RgbImage::new(header.width, header.height, pixels);
    Ok(image.ok_or(ImageError::Damaged(header.format))?.upright(orientation))
}

/// A decoded file.
struct Decoded {
    /// RGB pixels as stored.
    pixels: Vec<u8>,
    /// EXIF's orientation, 1 to 8.
    orientation: u16,
}
