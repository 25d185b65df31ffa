//! Embeddings of the tokens for each layer (Gemma 3n, Gemma 4): computed once a step, added in each layer
//! through a gated projection. Does not know mixers and feed-forward blocks.

use super::weights::{PerLayerEmbedding, PerLayerWeights};
use super::{Workspace, post_norm_of};
use crate::backend::{Backend, BackendError, Columns, HeadColumns, Norm};
use crate::config::DecoderConfig;

/// The buffers of embeddings for each layer.
pub(super) struct PerLayerBuffers<B: Backend> {
    /// Number of columns of one layer's part.
    width: usize,
    /// `[tokens, layers * width]`.
    embedded: B::Buffer,
    /// Embeddings of the tokens alone, of the same shape.
    of_tokens: B::Buffer,
    /// `[tokens, width]`.
    gate: B::Buffer,
    /// A layer's gates and embeddings, `[tokens, 2 * width]`.
    gated: B::Buffer,
    /// `[tokens, width]`.
    hidden: B::Buffer,
}

impl<B: Backend> PerLayerBuffers<B> {
    /// `None` for a model without such embeddings.
    pub(super) fn new(
        backend: &B,
        config: &DecoderConfig,
        max_tokens: usize,
    ) -> Result<Option<Self>, BackendError> {
        let Some(width) = config.per_layer_width else { return Ok(None) };
        let buffer = |cols| backend.buffer(max_tokens, cols);
        let whole = config.layers.len() * width;
        let (embedded, of_tokens) = (buffer(whole)?, buffer(whole)?);
        let (gate, gated, hidden) = (buffer(width)?, buffer(2 * width)?, buffer(width)?);
        Ok(Some(Self { width, embedded, of_tokens, gate, gated, hidden }))
    }

    pub(super) fn set_rows(&mut self, backend: &mut B, n_rows: usize) {
        let Self { embedded, of_tokens, gate, gated, hidden, .. } = self;
        for buffer in [embedded, of_tokens, gate, gated, hidden] {
            backend.set_rows(buffer, n_rows);
        }
    }
}

/// Computes the embeddings of all layers from the tokens and from their first residual.
pub(super) fn embed_for_layers<B: Backend>(
    backend: &mut B,
    config: &DecoderConfig,
    weights: &PerLayerEmbedding<B>,
    ws: &mut Workspace<B>,
) {
    let buffers = ws.per_layer.as_mut().expect("a model with embeddings for layers has their buffers");
    let PerLayerBuffers { width, embedded, of_tokens, .. } = buffers;
    let root = |n: usize| (n as f64).sqrt();
    backend.embed(&weights.table, &ws.batch, root(*width) as f32, of_tokens);
    backend.matmul(&ws.residual, &weights.projection, None, embedded);
    backend.scale_and_cap(embedded, (1.0 / root(config.hidden_size)) as f32, None);
    let layers = Columns { first: 0, n_groups: config.layers.len(), width: *width };
    backend.norm_columns(embedded, layers, Norm::rms(&weights.norm, config.norm_eps));
    backend.add(embedded, of_tokens, 1.0);
    backend.scale_and_cap(embedded, (1.0 / root(2)) as f32, None);
}

/// Adds the output of a layer's embeddings to the residual stream.
pub(super) fn add_per_layer<B: Backend>(
    backend: &mut B,
    config: &DecoderConfig,
    layer_idx: usize,
    weights: &PerLayerWeights<B>,
    ws: &mut Workspace<B>,
) {
    let buffers = ws.per_layer.as_mut().expect("a model with embeddings for layers has their buffers");
    let PerLayerBuffers { width, embedded, gate, gated, hidden, .. } = buffers;
    let at = |first: usize| HeadColumns { first, stride: *width };
    backend.matmul(&ws.residual, &weights.gate, None, gate);
    backend.copy_columns(gate, at(0), gated, at(0), 1, *width);
    backend.copy_columns(embedded, at(layer_idx * *width), gated, at(*width), 1, *width);
    backend.glu(gated, config.activation, hidden);
    backend.matmul(hidden, &weights.projection, None, &mut ws.output);
    backend.norm_rows(&ws.output, post_norm_of(config, &weights.post_norm), &mut ws.input);
    backend.add(&mut ws.residual, &ws.input, 1.0);
}
