//! Features of pictures in prompts: what an encoder gives for their pixel values, kept for later steps and
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
    /// The content is not one that the encoder reads.
    #[error("the encoder does not read this: {0}")]
    Unreadable(String),
    /// The device failed or has no memory.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The encoder's weights could not be read.
    #[error(transparent)]
    Weights(Box<dyn std::error::Error + Send + Sync>),
}

/// Makes features of pixel values. Equal contents have equal features, to the bit: nothing else that is
/// encoded or computed at the same time changes them, nor where the work is parted.
pub trait MediaEncoder: Send {
    /// Begins the work on one content.
    ///
    /// # Errors
    /// When it is not one that the encoder reads, its weights cannot be read, or memory does not suffice.
    fn begin(&mut self, content: &MediaContent) -> Result<Box<dyn MediaEncoding>, EncodeError>;
}

/// The work on the features of one content, which may be done in parts.
pub trait MediaEncoding: Send {
    /// Works until this share is done: not at all if it is already. Returns the features when all is done,
    /// once.
    ///
    /// # Errors
    /// When the device fails.
    fn advance(&mut self, share: WorkShare) -> Result<Option<Features>, EncodeError>;
}
