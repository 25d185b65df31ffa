//! The part of a loaded model that encodes pictures, as those who run models see it. Does not know how it
//! does.

use std::sync::Arc;

use serde_json::Value;
use throng_kernels::threads::ThreadPool;

use super::BackendKind;
use crate::backend::BackendError;
use crate::media::MediaEncoder;

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
