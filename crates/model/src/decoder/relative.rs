//! Attention with scores by the distance of two tokens, over sequences that are whole in a step. Does not
//! know how distances are sorted into buckets.

use super::weights::RelativeWeights;
use crate::backend::{AttentionQueries, AttentionShape, Backend, BackendError, HeadColumns, RelativeScores};
use crate::config::{DecoderConfig, RelativeKind, RelativePositions};

/// The buffers of scores by bucket, `[tokens, n_heads * n_buckets]`.
pub(super) struct RelativeBuffers<B: Backend> {
    of_queries: Option<B::Buffer>,
    of_keys: Option<B::Buffer>,
}

impl<B: Backend> RelativeBuffers<B> {
    /// `None` for a model without such scores.
    pub(super) fn new(
        backend: &B,
        config: &DecoderConfig,
        max_tokens: usize,
    ) -> Result<Option<Self>, BackendError> {
        let Some(relative) = &config.relative else { return Ok(None) };
        let n_heads = config.attentions().map(|attention| attention.n_heads).max().unwrap_or(0);
        let buffer = |is_there: bool| {
            is_there.then(|| backend.buffer(max_tokens, n_heads * relative.n_buckets)).transpose()
        };
        let (has_keys, has_queries) = match relative.kind {
            RelativeKind::Bias => (false, false),
            RelativeKind::Disentangled { has_keys, has_queries, .. } => (has_keys, has_queries),
        };
        Ok(Some(Self { of_queries: buffer(has_keys)?, of_keys: buffer(has_queries)? }))
    }

    pub(super) fn set_rows(&mut self, backend: &mut B, n_rows: usize) {
        for buffer in [&mut self.of_queries, &mut self.of_keys].into_iter().flatten() {
            backend.set_rows(buffer, n_rows);
        }
    }
}

/// Attention of every token over its whole sequence.
pub(super) fn attend_relatively<B: Backend>(
    backend: &mut B,
    batch: &B::Batch,
    shape: &AttentionShape,
    (positions, weights): (&RelativePositions, &RelativeWeights<B>),
    buffers: &mut RelativeBuffers<B>,
    (qkv, attended): (&B::Buffer, &mut B::Buffer),
) {
    let RelativeBuffers { of_queries, of_keys } = buffers;
    let to = HeadColumns { first: 0, stride: positions.n_buckets };
    let first_key = shape.n_heads * shape.head_dim;
    let parts = [(0, &weights.keys, of_queries), (first_key, &weights.queries, of_keys)];
    let [of_queries, of_keys] = parts.map(|(first, matrices, out)| {
        let (matrices, out) = matrices.as_ref().zip(out.as_mut())?;
        let from = HeadColumns { first, stride: shape.head_dim };
        backend.matmul_heads(qkv, from, matrices, out, to);
        Some(&*out)
    });
    let scores = RelativeScores { positions, bias: weights.bias.as_ref(), of_queries, of_keys };
    let queries = AttentionQueries { qkv, shape, sinks: None };
    backend.relative_attention(batch, queries, scores, attended);
}
