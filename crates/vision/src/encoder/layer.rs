//! Layers with norms before their blocks, chunk by chunk: first the keys of all rows, then the rest. Does not
//! know the progress of an encoding.

use throng_model::backend::{Backend, Scratch};
use throng_model::shapes::Activation;

use super::{Chunk, Encoding};
use crate::config::EncoderActivation;
use crate::weights::LayerWeights;

impl<B: Backend> Encoding<B> {
    /// Queries, keys and values of a chunk; the latter two are stored.
    pub(super) fn plain_keys(&mut self, at: (usize, usize), weights: &LayerWeights<B>) {
        let Self { backend, chunks, scratch, attention, .. } = self;
        let Chunk { residual, qkv, .. } = &mut chunks[at.1];
        let (linear, norm) = (&weights.query_key_value, weights.attention_norm.get());
        backend.norm_matmul(residual, norm, &linear.weight, linear.bias.as_ref(), scratch, qkv);
        attention.store(backend, at, qkv);
    }

    /// Attention and the feed-forward network of a chunk.
    pub(super) fn plain_rest(&mut self, at: (usize, usize), weights: &LayerWeights<B>) {
        let Self { backend, chunks, scratch, attention, attended, config, .. } = self;
        let Chunk { residual, qkv, n_rows, .. } = &mut chunks[at.1];
        backend.set_rows(attended, *n_rows);
        attention.attend(backend, at, qkv, attended);
        let output = &weights.output;
        backend.matmul_add(attended, &output.weight, output.bias.as_ref(), scratch, residual);
        let norm = Some(weights.mlp_norm.get());
        match config.activation {
            EncoderActivation::Plain(activation) => {
                backend.gated_mlp_add(norm, &weights.mlp, activation, scratch, residual);
            }
            EncoderActivation::QuickGelu => quick_gelu_mlp(backend, weights, residual, scratch),
        }
    }
}

/// CLIP's feed-forward network: `x · sigmoid(a x)` is SiLU of `a x`, divided by `a`.
fn quick_gelu_mlp<B: Backend>(
    backend: &mut B,
    weights: &LayerWeights<B>,
    residual: &mut B::Buffer,
    scratch: &mut Scratch<B>,
) {
    const STEEPNESS: f32 = 1.702;
    let n_rows = backend.n_rows(residual);
    let Scratch { normed, partial, mlps } = scratch;
    let mlp = &mut mlps[0];
    for buffer in [&mut *normed, &mut *partial, &mut mlp.gate_up, &mut mlp.hidden] {
        backend.set_rows(buffer, n_rows);
    }
    backend.norm_rows(residual, weights.mlp_norm.get(), normed);
    let (up, down) = (&weights.mlp.gate_up, &weights.mlp.down);
    backend.matmul(normed, &up.weight, up.bias.as_ref(), &mut mlp.gate_up);
    backend.scale_and_cap(&mut mlp.gate_up, STEEPNESS, None);
    backend.glu(&mlp.gate_up, Activation::Silu, &mut mlp.hidden);
    backend.scale_and_cap(&mut mlp.hidden, 1.0 / STEEPNESS, None);
    backend.matmul(&mlp.hidden, &down.weight, down.bias.as_ref(), partial);
    backend.all_reduce(partial);
    backend.add(residual, partial, 1.0);
}
