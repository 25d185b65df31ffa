//! The forward pass of an EAGLE-3 head (arXiv:2503.01840): one layer over tokens and the model's features at
//! the positions before them. Does not know which drafts are wanted.

use std::ops::Range;
use std::sync::Arc;

use super::config::HeadConfig;
use super::weights::HeadWeights;
use crate::backend::{
    AttentionQueries, AttentionShape, Backend, BackendError, Columns, Linear, Norm, Scratch,
};
use crate::batch_input::BatchInput;
use crate::decoder::DecoderLimits;
use crate::decoder::weights::DecoderWeights;

/// A head on a device, with the buffers of its forward pass.
pub(super) struct Head<B: Backend> {
    pub(super) config: Arc<HeadConfig>,
    pub(super) weights: Arc<HeadWeights<B>>,
    /// Weights of the model, whose embedding table a head without its own reads.
    model: Arc<DecoderWeights<B>>,
    shape: AttentionShape,
    batch: B::Batch,
    ropes: B::RopeTables,
    scratch: Scratch<B>,
    /// The features, then the residual stream, `[tokens, hidden]`.
    residual: B::Buffer,
    /// A normed input of the projections.
    normed: B::Buffer,
    embedded: B::Buffer,
    qkv: B::Buffer,
    /// The projections of one of the two inputs.
    qkv_of_feature: B::Buffer,
    attended: B::Buffer,
    /// Outputs, `[wanted, hidden]`.
    wanted: B::Buffer,
    /// Logits, `[wanted, draft vocabulary]`.
    logits: B::Buffer,
}

impl<B: Backend> Head<B> {
    /// A head with the buffers of its steps.
    ///
    /// # Errors
    /// When the memory of the device does not suffice.
    pub(super) fn new(
        backend: &B,
        config: Arc<HeadConfig>,
        weights: Arc<HeadWeights<B>>,
        model: Arc<DecoderWeights<B>>,
        limits: &DecoderLimits,
    ) -> Result<Self, BackendError> {
        let &DecoderLimits { max_tokens, max_logit_rows, max_sequence_tokens, n_positions, .. } = limits;
        let decoder = &config.decoder;
        let hidden = decoder.hidden_size;
        let attention = config.attention;
        let heads_width = attention.n_heads * attention.head_dim;
        let keys_width = attention.n_kv_heads * attention.head_dim;
        let rows = |cols| backend.buffer(max_tokens, cols);
        let ropes = [decoder.ropes[0].for_context(max_sequence_tokens)];
        Ok(Self {
            shape: AttentionShape {
                // Nothing stands before the first token of a sequence: the head begins at the second one.
                first_position: 1,
                ..AttentionShape::new(
                    attention.n_heads,
                    attention.n_kv_heads,
                    attention.head_dim,
                    attention.scale,
                )
            },
            batch: backend.batch()?,
            ropes: backend.rope_tables(&ropes, n_positions)?,
            scratch: Scratch::new(
                backend,
                max_tokens.max(max_logit_rows),
                hidden,
                [config.feed_forward_width],
                true,
            )?,
            residual: rows(hidden)?,
            normed: rows(hidden)?,
            embedded: rows(hidden)?,
            qkv: rows(heads_width + 2 * keys_width)?,
            qkv_of_feature: rows(heads_width + 2 * keys_width)?,
            attended: rows(heads_width)?,
            wanted: backend.buffer(max_logit_rows, hidden)?,
            logits: backend.buffer(max_logit_rows, config.draft_vocabulary_size)?,
            config,
            weights,
            model,
        })
    }

    /// Runs the layer over a step's tokens: writes their keys and values and keeps its output. `features` has
    /// a row for each token: the features at the position before it.
    ///
    /// The published heads number a token's entry by the position before it. Here it has the token's own
    /// position, so that a block of the cache depends on no token after it; only differences of positions
    /// enter the rotary embedding.
    pub(super) fn forward(
        &mut self,
        backend: &mut B,
        cache: &mut B::KvCache,
        input: &BatchInput,
        features: &[f32],
    ) {
        let weights = &*self.weights;
        let (decoder, shape) = (&self.config.decoder, &self.shape);
        let norm = |gain| Norm::rms(gain, decoder.norm_eps);
        backend.upload(input, &mut self.batch);
        let buffers = [
            &mut self.normed,
            &mut self.embedded,
            &mut self.qkv,
            &mut self.qkv_of_feature,
            &mut self.attended,
        ];
        buffers.into_iter().for_each(|buffer| backend.set_rows(buffer, input.n_tokens()));

        let table = weights.embedding.as_ref().unwrap_or_else(|| self.model.embedding_table());
        backend.embed(table, &self.batch, 1.0, &mut self.embedded);
        let linear = &weights.query_key_value_of_token;
        let bias = linear.bias.as_ref();
        backend.norm_rows(&self.embedded, norm(&weights.token_norm), &mut self.normed);
        backend.matmul(&self.normed, &linear.weight, bias, &mut self.qkv);
        backend.write_rows(&mut self.residual, features);
        backend.norm_rows(&self.residual, norm(&weights.feature_norm), &mut self.normed);
        backend.matmul(&self.normed, &weights.query_key_value_of_feature, None, &mut self.qkv_of_feature);
        backend.add(&mut self.qkv, &self.qkv_of_feature, 1.0);
        if self.config.has_normed_residual {
            std::mem::swap(&mut self.residual, &mut self.normed);
        }

        let heads = Columns { n_groups: shape.n_heads + shape.n_kv_heads, ..Columns::of_queries(shape) };
        backend.rope(&mut self.qkv, &self.batch, &self.ropes, 0, heads, self.config.attention.rope_style);
        backend.store_kv(cache, 0, &self.batch, &self.qkv, shape);
        let queries = AttentionQueries { qkv: &self.qkv, shape, sinks: None };
        backend.attention(cache, 0, &self.batch, queries, &mut self.attended);
        let Linear { weight, bias } = &weights.attention_output;
        backend.matmul_add(&self.attended, weight, bias.as_ref(), &mut self.scratch, &mut self.residual);
        let (mlp, activation) = (&weights.feed_forward, decoder.activation);
        let before = Some(norm(&weights.feed_forward_norm));
        backend.gated_mlp_add(before, mlp, activation, &mut self.scratch, &mut self.residual);
    }

    /// The layer's output at the last step's wanted tokens, `[wanted, hidden]`, used in place of the model's
    /// features.
    ///
    /// # Errors
    /// When the device failed.
    pub(super) fn outputs(&mut self, backend: &mut B, wanted: Range<usize>) -> Result<&[f32], BackendError> {
        self.gather(backend, wanted);
        Ok(backend.download(&mut self.wanted)?)
    }

    /// The logits at the last step's wanted tokens, `[wanted, draft vocabulary]`.
    ///
    /// # Errors
    /// When the device failed.
    pub(super) fn logits(&mut self, backend: &mut B, wanted: Range<usize>) -> Result<&[f32], BackendError> {
        backend.set_rows(&mut self.logits, wanted.len());
        self.gather(backend, wanted);
        let norm = Norm::rms(&self.weights.final_norm, self.config.decoder.norm_eps);
        let output = &self.weights.output;
        backend.norm_matmul(&self.wanted, norm, output, None, &mut self.scratch, &mut self.logits);
        Ok(backend.download(&mut self.logits)?)
    }

    fn gather(&mut self, backend: &mut B, wanted: Range<usize>) {
        backend.set_rows(&mut self.wanted, wanted.len());
        backend.gather_logit_rows(&self.residual, &self.batch, wanted, &mut self.wanted);
    }
}
