//! Errors of decoding and processing. They contain nothing about memory and paths, so that clients may read
//! them.

use crate::image_format::ImageFormat;

/// An image that cannot be used. The text of each error is for the client that sent it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// The file has more bytes than allowed.
    #[error("an image may have at most {limit} bytes, and this one has {n_bytes}")]
    TooManyBytes {
        /// Bytes of the file.
        n_bytes: usize,
        /// Maximum number of bytes.
        limit: usize,
    },
    /// The content is none of the supported formats.
    #[error("this is no image of a supported format: PNG, JPEG, WebP, GIF or BMP")]
    UnknownFormat,
    /// The content is damaged, incomplete, or uses a part of its format that is not supported.
    #[error("this {0} image is damaged or not supported")]
    Damaged(ImageFormat),
    /// The image has no pixels.
    #[error("the image is empty")]
    Empty,
    /// A side is longer than allowed.
    #[error("an image may have at most {limit} pixels a side, and this one has {width} by {height}")]
    TooLong {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
        /// Maximum pixels of a side.
        limit: u32,
    },
    /// The image has more pixels than allowed.
    #[error("an image may have at most {limit} pixels, and this one has {width} by {height}")]
    TooManyPixels {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
        /// Maximum number of pixels.
        limit: u64,
    },
    /// The model takes no image of this shape.
    #[error("an image of {width} by {height} pixels does not fit this model: {reason}")]
    Shape {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
        /// Reason for the misfit.
        reason: &'static str,
    },
}

/// A processor's configuration that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProcessorError {
    /// No processor of this type is known.
    #[error("image processor `{0}` is not supported")]
    Unknown(String),
    /// A setting is missing, of the wrong type or out of range.
    #[error("the image processor's `{0}` is missing or out of range")]
    Setting(&'static str),
}
