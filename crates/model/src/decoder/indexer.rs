//! Choice of the positions that latent attention reads (DeepSeek sparse attention, arXiv:2512.02556, 2.1):
//! small heads score the keys of all positions, and the best ones are read. Does not know how scores are
//! summed.

use super::Workspace;
use super::weights::{IndexerWeights, LayerWeights};
use crate::backend::{Backend, BackendError, Columns, HeadColumns, IndexQueries, Norm};
use crate::config::{DecoderConfig, IndexerConfig, LatentConfig, Mixer};

/// The buffers of an indexer, shared by all layers with one, whose shapes are equal.
pub(super) struct IndexerBuffers<B: Backend> {
    /// `[tokens, n_heads * head_dim]`.
    queries: B::Buffer,
    /// `[tokens, head_dim]`.
    key: B::Buffer,
    normed_key: B::Buffer,
    /// Queries and the key, `[tokens, (n_heads + 1) * head_dim]`.
    joined: B::Buffer,
    /// `[tokens, n_heads]`.
    weights: B::Buffer,
    /// Positions that were chosen last, `[tokens, n_chosen]`.
    pub(super) chosen: B::Buffer,
}

impl<B: Backend> IndexerBuffers<B> {
    /// `None` for a model that attends to all positions.
    pub(super) fn new(
        backend: &B,
        config: &DecoderConfig,
        max_tokens: usize,
    ) -> Result<Option<Self>, BackendError> {
        let indexers = config.layers.iter().filter_map(|layer| match &layer.mixer {
            Mixer::Latent(latent) => latent.indexer,
            _ => None,
        });
        let Some(indexer) = indexers.into_iter().next() else { return Ok(None) };
        let IndexerConfig { n_heads, head_dim, n_chosen, .. } = indexer;
        let buffer = |cols| backend.buffer(max_tokens, cols);
        Ok(Some(Self {
            queries: buffer(n_heads * head_dim)?,
            key: buffer(head_dim)?,
            normed_key: buffer(head_dim)?,
            joined: buffer((n_heads + 1) * head_dim)?,
            weights: buffer(n_heads)?,
            chosen: buffer(n_chosen)?,
        }))
    }

    pub(super) fn set_rows(&mut self, backend: &mut B, n_rows: usize) {
        let Self { queries, key, normed_key, joined, weights, chosen } = self;
        for buffer in [queries, key, normed_key, joined, weights, chosen] {
            backend.set_rows(buffer, n_rows);
        }
    }
}

/// Chooses positions for every token, whose normed input and compressed queries are in the workspace. A layer
/// without weights of its own uses the choice of the layer before it.
pub(super) fn choose_positions<B: Backend>(
    backend: &mut B,
    cache: &mut B::KvCache,
    (latent, indexer): (&LatentConfig, &IndexerConfig),
    (weights, of_indexer): (&LayerWeights<B>, &IndexerWeights<B>),
    ws: &mut Workspace<B>,
) {
    let Some(cache_idx) = indexer.cache_idx else { return };
    let &IndexerConfig { n_heads, head_dim, norm_eps, rope_style, .. } = indexer;
    let buffers = ws.indexer.as_mut().expect("a model with an indexer has its buffers");
    let of_latent = ws.latent.as_ref().expect("a model with latent attention has its buffers");
    let input = if weights.pre_mixer_norm.is_some() { &ws.input } else { &ws.residual };
    let IndexerBuffers { queries, key, normed_key, joined, weights: of_heads, chosen } = buffers;
    backend.matmul(of_latent.compressed(), &of_indexer.queries, None, queries);
    backend.matmul(input, &of_indexer.key, None, key);
    let [gain, bias] = &of_indexer.key_norm;
    backend.norm_rows(key, Norm { gain, bias: Some(bias), eps: norm_eps }, normed_key);
    backend.matmul(input, &of_indexer.weights, None, of_heads);
    let at = |first: usize| HeadColumns { first, stride: head_dim };
    backend.copy_columns(queries, at(0), joined, at(0), n_heads, head_dim);
    backend.copy_columns(normed_key, at(0), joined, at(n_heads * head_dim), 1, head_dim);
    let heads = Columns { first: 0, n_groups: n_heads + 1, width: head_dim };
    backend.rope(joined, &ws.batch, &ws.ropes, latent.rope_idx, heads, rope_style);
    let shape = indexer.shape();
    backend.store_kv(cache, cache_idx, &ws.batch, joined, &shape);
    let queries = IndexQueries { qkv: joined, weights: of_heads, shape: &shape };
    backend.choose_positions(cache, cache_idx, &ws.batch, queries, chosen);
}
