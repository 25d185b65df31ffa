//! The part of a loaded model that encodes pictures, as an interface for those who run models. Does not know
//! how it encodes.

use std::sync::Arc;

use serde_json::Value;
use throng_kernels::threads::ThreadPool;

use super::BackendKind;
use crate::backend::BackendError;
use crate::media::MediaEncoder;

/// The part of a model that encodes pictures, whose weights are read when the first picture arrives.
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

    /// Content of a `preprocessor_config.json` and a `config.json` for a model in a GGUF file; `None` for a
    /// folder, which has these files.
    fn processor(&self) -> Option<[Value; 2]> {
        None
    }

    /// Description of the encoder for operators.
    fn describe(&self) -> String;

    /// Whether it reads the tensor of this name.
    fn reads(&self, tensor: &str) -> bool;

    /// Token whose per-layer embeddings the tokens of pictures use, in decoders with per-layer embeddings.
    fn placeholder_token(&self) -> u32 {
        0
    }
}
