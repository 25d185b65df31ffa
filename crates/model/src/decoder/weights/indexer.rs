//! The tensors of the choice of positions. Does not know attention.

use super::{Loader, TensorError, weight};
use crate::backend::{Backend, MatrixRole};
use crate::config::{IndexerConfig, LatentConfig};

/// Weights of an indexer.
pub(crate) struct IndexerWeights<B: Backend> {
    /// `[n_heads * head_dim, query_rank]`.
    pub(crate) queries: B::Matrix,
    /// `[head_dim, hidden]`.
    pub(crate) key: B::Matrix,
    /// Gain and bias of the key's layer norm.
    pub(crate) key_norm: [B::Vector; 2],
    /// Matrix from which the weights of heads are computed, `[n_heads, hidden]`.
    pub(crate) weights: B::Matrix,
}

impl<B: Backend> Loader<'_, B> {
    /// `None` for a layer without an indexer of its own.
    pub(super) fn indexer(
        &mut self,
        layer: &str,
        latent: &LatentConfig,
    ) -> Result<Option<IndexerWeights<B>>, TensorError> {
        let Some(IndexerConfig { n_heads, head_dim, cache_idx: Some(_), .. }) = latent.indexer else {
            return Ok(None);
        };
        let (hidden, names) = (self.config.hidden_size, self.names);
        let at = |name: &str| format!("{layer}{name}");
        let rank = latent.query_rank.unwrap_or(hidden);
        let role = MatrixRole::Router;
        let norm = at(names.index_key_norm);
        Ok(Some(IndexerWeights {
            queries: self.matrix(role, &[(&at(names.index_query), n_heads * head_dim)], rank)?,
            key: self.matrix(role, &[(&at(names.index_key), head_dim)], hidden)?,
            key_norm: [
                self.vector(&weight(&norm), head_dim)?,
                self.vector(&format!("{norm}.bias"), head_dim)?,
            ],
            weights: self.matrix(role, &[(&at(names.index_weights), n_heads)], hidden)?,
        }))
    }
}
