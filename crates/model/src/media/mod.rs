//! Features of pictures in prompts: what an encoder gives for their pixel values, kept for later steps and
//! later prompts. Does not know encoders and how pictures become pixel values.

mod cache;
mod step;

use std::sync::Arc;

use serde_json::Value;
use throng_core::prompt_media::MediaContent;
use throng_core::scheduling::batch::WorkShare;
use throng_kernels::threads::ThreadPool;

use crate::backend::BackendError;
use crate::load::{BackendKind, LoadError};

pub use cache::FeatureCache;
pub(crate) use step::MediaReader;

/// Features of a picture: rows that stand in place of the embeddings of its tokens.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Features {
    /// Elements of a row: the width of the decoder's residual stream.
    pub width: usize,
    /// One row a feature, one after the other.
    pub rows: Vec<f32>,
    /// Rows that are added to the residual stream of the same tokens behind the first layers, one list a
    /// layer.
    pub deepstack: Vec<Vec<f32>>,
}

impl Features {
    /// Number of features.
    pub fn n_rows(&self) -> usize {
        self.rows.len() / self.width.max(1)
    }

    /// Bytes of all rows.
    pub fn n_bytes(&self) -> usize {
        let n_deepstack: usize = self.deepstack.iter().map(Vec::len).sum();
        (self.rows.len() + n_deepstack) * size_of::<f32>()
    }

    fn is_whole(&self) -> bool {
        self.rows.len() == self.n_rows() * self.width
            && self.deepstack.iter().all(|rows| rows.len() == self.rows.len())
    }
}

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
    Weights(#[from] Box<LoadError>),
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

/// The part of a model that encodes pictures, whose weights are read when the first picture comes.
pub trait MediaModel: Send + Sync {
    /// An encoder on a backend of this crate. Encoders share the weights.
    ///
    /// # Errors
    /// When the backend cannot run it.
    fn encoder(
        &self,
        backend: BackendKind,
        threads: &Arc<ThreadPool>,
    ) -> Result<Box<dyn MediaEncoder>, BackendError>;

    /// What `preprocessor_config.json` and `config.json` would say of a model whose file is GGUF; `None` of a
    /// folder, which has them.
    fn processor(&self) -> Option<[Value; 2]> {
        None
    }

    /// The encoder in words, for operators.
    fn describe(&self) -> String;

    /// Whether it reads the tensor of this name.
    fn reads(&self, tensor: &str) -> bool;

    /// Token whose embeddings for layers, where the decoder has such, the tokens of pictures have.
    fn placeholder_token(&self) -> u32 {
        0
    }
}
