//! Multi-head latent attention in its absorbed form (arXiv:2405.04434, 2.1): the latent vector of a token is
//! key and value of all heads, and matrices that would make keys and values of it multiply queries and
//! outputs instead. Does not know other mixers.

use super::indexer::choose_positions;
use super::weights::{LatentQuery, LatentWeights, LayerWeights};
use super::{Workspace, add_output, adds_directly, norm, post_norm};
use crate::backend::{AttentionQueries, Backend, BackendError, Columns, HeadColumns, Norm};
use crate::config::{DecoderConfig, LatentConfig, Mixer, RopeStyle};

/// The weights of a layer, and those of its latent attention.
type Weights<'a, B> = (&'a LayerWeights<B>, &'a LatentWeights<B>);

/// The buffers of latent attention, shared by all layers with it, whose shapes are equal.
pub(super) struct LatentBuffers<B: Backend> {
    /// The vector from which queries are computed, `[tokens, query_rank]`.
    compressed: B::Buffer,
    /// `[tokens, n_heads * (nope_dim + rope_dim)]`.
    query: B::Buffer,
    /// `[tokens, key_dim]`.
    key: B::Buffer,
    /// Queries of latent vectors and the key, `[tokens, (n_heads + 1) * key_dim]`.
    absorbed: B::Buffer,
    /// `[tokens, n_heads * rank]`.
    attended: B::Buffer,
    /// `[tokens, n_heads * value_dim]`.
    values: B::Buffer,
}

impl<B: Backend> LatentBuffers<B> {
    /// `None` for a model without latent attention.
    pub(super) fn new(
        backend: &B,
        config: &DecoderConfig,
        max_tokens: usize,
    ) -> Result<Option<Self>, BackendError> {
        let latents = config.layers.iter().filter_map(|layer| match &layer.mixer {
            Mixer::Latent(latent) => Some(latent),
            _ => None,
        });
        let Some(latent) = latents.into_iter().next() else { return Ok(None) };
        let &LatentConfig { n_heads, rank, nope_dim, rope_dim, value_dim, .. } = latent;
        let buffer = |cols| backend.buffer(max_tokens, cols);
        Ok(Some(Self {
            compressed: buffer(latent.query_rank.unwrap_or(1))?,
            query: buffer(n_heads * (nope_dim + rope_dim))?,
            key: buffer(latent.key_dim())?,
            absorbed: buffer((n_heads + 1) * latent.key_dim())?,
            attended: buffer(n_heads * rank)?,
            values: buffer(n_heads * value_dim)?,
        }))
    }

    /// The normed vector from which queries are computed.
    pub(super) fn compressed(&self) -> &B::Buffer {
        &self.compressed
    }

    pub(super) fn set_rows(&mut self, backend: &mut B, n_rows: usize) {
        let Self { compressed, query, key, absorbed, attended, values } = self;
        for buffer in [compressed, query, key, absorbed, attended, values] {
            backend.set_rows(buffer, n_rows);
        }
    }
}

/// The latent attention of a layer.
pub(super) fn attend_latent<B: Backend>(
    backend: &mut B,
    cache: &mut B::KvCache,
    config: &DecoderConfig,
    latent: &LatentConfig,
    layer_idx: usize,
    (weights, of_latent): Weights<'_, B>,
    ws: &mut Workspace<B>,
) {
    let shape = latent.shape();
    set_queries(backend, config, latent, (weights, of_latent), ws);
    if let (Some(indexer), Some(of_indexer)) = (&latent.indexer, &of_latent.indexer) {
        choose_positions(backend, cache, (latent, indexer), (weights, of_indexer), ws);
    }
    let buffers = ws.latent.as_mut().expect("a model with latent attention has its buffers");
    let heads = Columns { first: 0, n_groups: latent.n_heads + 1, width: latent.key_dim() };
    backend.rope(&mut buffers.absorbed, &ws.batch, &ws.ropes, latent.rope_idx, heads, latent.rope_style);
    backend.store_kv(cache, layer_idx, &ws.batch, &buffers.absorbed, &shape);
    let queries = AttentionQueries { qkv: &buffers.absorbed, shape: &shape, sinks: None };
    match ws.indexer.as_ref().filter(|_| latent.indexer.is_some()) {
        None => backend.attention(cache, layer_idx, &ws.batch, queries, &mut buffers.attended),
        Some(indexer) => {
            let (chosen, out) = (&indexer.chosen, &mut buffers.attended);
            backend.attention_at(cache, layer_idx, &ws.batch, queries, chosen, out);
        }
    }
    let from = HeadColumns { first: 0, stride: latent.rank };
    let to = HeadColumns { first: 0, stride: latent.value_dim };
    backend.matmul_heads(&buffers.attended, from, &of_latent.values, &mut buffers.values, to);
    let (weight, bias) = (&of_latent.output.weight, of_latent.output.bias.as_ref());
    let post_norm = post_norm(config, &weights.post_mixer_norm);
    if adds_directly(config, post_norm) {
        return backend.matmul_add(&buffers.values, weight, bias, &mut ws.scratch, &mut ws.residual);
    }
    backend.matmul(&buffers.values, weight, bias, &mut ws.output);
    backend.all_reduce(&mut ws.output);
    add_output(backend, config, post_norm, ws);
}

/// Queries of latent vectors, and the shared key beside them.
fn set_queries<B: Backend>(
    backend: &mut B,
    config: &DecoderConfig,
    latent: &LatentConfig,
    (weights, of_latent): Weights<'_, B>,
    ws: &mut Workspace<B>,
) {
    let &LatentConfig { n_heads, rank, nope_dim, rope_dim, norm_eps, .. } = latent;
    let Workspace { residual, input, latent: buffers, batch, ropes, .. } = ws;
    let buffers = buffers.as_mut().expect("a model with latent attention has its buffers");
    let LatentBuffers { compressed, query, key, absorbed, .. } = buffers;
    let input = match norm(config, &weights.pre_mixer_norm) {
        None => &*residual,
        Some(norm) => {
            backend.norm_rows(residual, norm, input);
            &*input
        }
    };
    let LatentQuery { compression, projection } = &of_latent.query;
    match compression {
        None => backend.matmul(input, &projection.weight, projection.bias.as_ref(), query),
        Some((down, gain)) => {
            backend.matmul(input, &down.weight, down.bias.as_ref(), compressed);
            let width = latent.query_rank.unwrap_or(1);
            let whole = Columns { first: 0, n_groups: 1, width };
            backend.norm_columns(compressed, whole, Norm::rms(gain, norm_eps));
            backend.matmul(compressed, &projection.weight, projection.bias.as_ref(), query);
        }
    }
    if let Some(growth) = latent.growth_rope_idx {
        let heads = Columns { first: 0, n_groups: n_heads, width: nope_dim + rope_dim };
        backend.rope(query, batch, ropes, growth, heads, RopeStyle::HalfSplit);
    }
    let linear = &of_latent.key_value;
    backend.matmul(input, &linear.weight, linear.bias.as_ref(), key);
    let vector = Columns { first: rope_dim, n_groups: 1, width: rank };
    backend.norm_columns(key, vector, Norm::rms(&of_latent.norm, norm_eps));

    let key_dim = latent.key_dim();
    let stride = nope_dim + rope_dim;
    let rotated = HeadColumns { first: nope_dim, stride };
    let to = |first: usize| HeadColumns { first, stride: key_dim };
    backend.copy_columns(query, rotated, absorbed, to(0), n_heads, rope_dim);
    let unrotated = HeadColumns { first: 0, stride };
    backend.matmul_heads(query, unrotated, &of_latent.absorbed, absorbed, to(rope_dim));
    backend.copy_columns(key, to(0), absorbed, to(n_heads * key_dim), 1, key_dim);
}
