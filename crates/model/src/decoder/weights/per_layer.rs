//! The tensors of embeddings for each layer, and of the factor of a layer. Does not know mixers and
//! feed-forward blocks.

use super::{Loader, PerLayerEmbedding, PerLayerWeights, TensorError, weight};
use crate::arch::TensorNames;
use crate::backend::{Backend, MatrixRole};

impl<B: Backend> Loader<'_, B> {
    pub(super) fn per_layer_embedding(
        &mut self,
        names: &TensorNames,
        width: usize,
    ) -> Result<PerLayerEmbedding<B>, TensorError> {
        let config = self.config;
        let (whole, hidden) = (config.layers.len() * width, config.hidden_size);
        let table = [(names.per_layer_embedding, config.vocabulary_size)];
        let projection = [(names.per_layer_projection, whole)];
        Ok(PerLayerEmbedding {
            table: self.matrix(MatrixRole::Embedding, &table, whole)?,
            projection: self.matrix(MatrixRole::Router, &projection, hidden)?,
            norm: self.norm(names.per_layer_norm, width)?,
        })
    }

    pub(super) fn per_layer(&mut self, layer: &str, width: usize) -> Result<PerLayerWeights<B>, TensorError> {
        let (hidden, names) = (self.config.hidden_size, self.names);
        let at = |name: &str| format!("{layer}{name}");
        Ok(PerLayerWeights {
            gate: self.matrix(MatrixRole::Router, &[(&at(names.per_layer_gate), width)], hidden)?,
            projection: self.matrix(
                MatrixRole::Router,
                &[(&at(names.per_layer_projection), hidden)],
                width,
            )?,
            post_norm: self.norm(&at(names.per_layer_post_norm), hidden)?,
        })
    }

    /// The factor of the residual stream after a layer.
    pub(super) fn scalar(&mut self, layer: &str) -> Result<f32, TensorError> {
        let name = format!("{layer}{}", self.names.scalar);
        let name = if self.find(&name).is_some() { name } else { weight(&name) };
        Ok(self.checked(&name, &[1])?.numbers()[0])
    }
}
