//! Weight formats: what the bytes of a tensor mean.

mod format;

pub use format::Format;
