//! Images as models read them: files to pixels within bounds, and pixels to the values that a family's
//! encoder takes, as the image processors of transformers compute them. Does not know requests, tokens and
//! encoders.
//!
//! The decoders are `png`, `zune-jpeg`, `image-webp`, `gif` and `zune-bmp` themselves, not the crate `image`
//! around them: each takes its bounds directly, colour management (`moxcms`) is not compiled, and `zune-jpeg`
//! without its vector instructions forbids unsafe code, as `png`, `image-webp` and `gif` do.
#![forbid(unsafe_code)]

mod decode;
mod error;
mod image_format;
mod processor;
mod resize;
mod rgb_image;

pub use decode::{DecodeLimits, ImageHeader, decode, read_header};
pub use error::{ImageError, ProcessorError};
pub use image_format::ImageFormat;
pub use processor::{Piece, ProcessedImage, Processor};
pub use resize::{Filter, resize};
pub use rgb_image::RgbImage;
