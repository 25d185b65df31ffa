//! From pixel values to features: encoders of pictures as data, and one forward pass for all of them over any
//! backend. Does not know files of pictures, requests and text.
#![forbid(unsafe_code)]

mod arrange;
pub mod config;
mod encoder;
mod families;
mod json;
mod model;
mod names;
mod patches;
mod positions;
mod weights;

pub use encoder::Encoding;
pub use model::{VisionModel, is_known, with_vision};
pub use patches::MAX_PATCHES;
