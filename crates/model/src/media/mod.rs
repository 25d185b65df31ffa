//! Features of pictures in prompts: an encoder's output for their pixel values, kept for later steps and
//! later prompts. Does not know encoders and how pictures become pixel values.

mod cache;
mod step;

use throng_core::prompt_media::MediaContent;
use throng_core::scheduling::batch::WorkShare;

use crate::backend::BackendError;

pub use crate::features::Features;
pub use cache::FeatureCache;
pub(crate) use step::MediaReader;

/// Reason why a content has no features.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The encoder cannot read this content.
    #[error("the encoder does not read this: {0}")]
    Unreadable(String),
    /// The device failed or has no memory.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The encoder's weights could not be read.
    #[error(transparent)]
    Weights(Box<dyn std::error::Error + Send + Sync>),
}

/// Computes features from pixel values. Equal contents have equal features, to the bit, whatever else is
/// computed at the same time and however the work is divided.
pub trait MediaEncoder: Send {
    /// Begins the work on one content.
    ///
    /// # Errors
    /// When it is not one that the encoder reads, its weights cannot be read, or memory does not suffice.
    fn begin(&mut self, content: &MediaContent) -> Result<Box<dyn MediaEncoding>, EncodeError>;
}

/// The work on the features of one content, which may be done in parts.
pub trait MediaEncoding: Send {
    /// Works until this share is done; does no work if it is done already. Returns the features when all is
    /// done, once.
    ///
    /// # Errors
    /// When the device fails.
    fn advance(&mut self, share: WorkShare) -> Result<Option<Features>, EncodeError>;
}
