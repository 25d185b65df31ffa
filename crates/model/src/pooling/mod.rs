//! Models that answer with a vector: embedding models, rerankers and classifiers. The pooled outputs of a
//! sequence go through the layers of a head. Does not know requests and the use of vectors.

mod config;
mod head;
mod runner;

use std::sync::Arc;

use crate::config::DecoderConfig;
use throng_checkpoint::TensorSource;

pub use config::{ClassifierActivation, Pooling, PoolingConfig, PoolingOutput, Prompts};
pub(crate) use config::{HeadActivation, HeadLayer};
pub(crate) use head::PoolingHead;
pub use runner::PoolingRunner;

/// Pooling of a model's outputs, and the tensors of its head.
#[derive(Clone)]
pub struct Pooler {
    /// Pooled outputs, and the meaning of the vector.
    pub config: PoolingConfig,
    /// The layers of the head, in order.
    pub(crate) layers: Vec<HeadLayer>,
    /// Tensors that are not in the model's own files, by the index of their layer.
    pub(crate) own_files: Vec<Option<Arc<dyn TensorSource>>>,
}

impl Pooler {
    /// Creates a head whose layers are all in the model's own files.
    pub(crate) fn new(config: PoolingConfig, layers: Vec<HeadLayer>) -> Self {
        let own_files = vec![None; layers.len()];
        Self { config, layers, own_files }
    }

    /// Whether all tokens of a text are computed in one step: they attend to each other in both directions,
    /// or all of them are pooled.
    pub fn takes_whole_prompts(&self, config: &DecoderConfig) -> bool {
        config.is_bidirectional() || self.config.pooling != Pooling::Last
    }
}
