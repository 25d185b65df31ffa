//! Layers with norms around their blocks and with bounds of the inputs and outputs of their linear layers.
//! Does not know names of tensors.

use throng_model::backend::{Backend, BackendError, Columns};
use throng_model::shapes::Activation;

use super::{Encoding, buffer};
use crate::config::EncoderActivation;
use crate::weights::{Clipped, NormWeights, SandwichWeights};

impl<B: Backend> Encoding<B> {
    /// Queries, keys and values of a chunk; the latter two are stored.
    pub(super) fn sandwich_keys(
        &mut self,
        at: (usize, usize),
        weights: &SandwichWeights<B>,
    ) -> Result<(), BackendError> {
        let (hidden, n_rows) = (self.config.hidden_size, self.chunks[at.1].n_rows);
        let input = self.normed(at.1, &weights.attention_norm)?;
        let parts = [0, 1, 2].map(|i| self.clipped(&input, hidden, &weights.heads[i]));
        let [queries, keys, values] = parts;
        let parts = [queries?, keys?, values?];
        let Self { backend, chunks, attention, .. } = self;
        let qkv = &mut chunks[at.1].qkv;
        backend.write_rows(qkv, &side_by_side(&parts, n_rows));
        let shape = *attention.shape();
        let columns = [Columns::of_queries(&shape), Columns::of_keys(&shape), Columns::of_values(&shape)];
        let norms = [&weights.query_norm, &weights.key_norm, &weights.value_norm];
        for (columns, norm) in columns.into_iter().zip(norms) {
            backend.norm_columns(qkv, columns, norm.get());
        }
        attention.store(backend, at, qkv);
        Ok(())
    }

    /// Attention and the feed-forward network of a chunk.
    pub(super) fn sandwich_rest(
        &mut self,
        at: (usize, usize),
        weights: &SandwichWeights<B>,
    ) -> Result<(), BackendError> {
        let (hidden, n_rows) = (self.config.hidden_size, self.chunks[at.1].n_rows);
        let Self { backend, chunks, attention, attended, .. } = self;
        backend.set_rows(attended, n_rows);
        attention.attend(backend, at, &chunks[at.1].qkv, attended);
        let width = attention.shape().n_heads * attention.shape().head_dim;
        let attended = backend.download(attended)?.to_vec();
        let output = self.clipped(&attended, width, &weights.output)?;
        self.add_normed(at.1, &output, &weights.attention_post_norm)?;
        let input = self.normed(at.1, &weights.mlp_norm)?;
        let gate_up =
            [self.clipped(&input, hidden, &weights.gate)?, self.clipped(&input, hidden, &weights.up)?];
        let width = self.config.mlp_width;
        let mut gates = buffer(&mut self.backend, n_rows, 2 * width)?;
        self.backend.write_rows(&mut gates, &side_by_side(&gate_up, n_rows));
        let mut activated = buffer(&mut self.backend, n_rows, width)?;
        let activation = match self.config.activation {
            EncoderActivation::Plain(activation) => activation,
            EncoderActivation::QuickGelu => Activation::GeluTanh,
        };
        self.backend.glu(&gates, activation, &mut activated);
        let activated = self.backend.download(&mut activated)?.to_vec();
        let output = self.clipped(&activated, width, &weights.down)?;
        self.add_normed(at.1, &output, &weights.mlp_post_norm)
    }

    fn normed(&mut self, chunk: usize, norm: &NormWeights<B>) -> Result<Vec<f32>, BackendError> {
        let Self { backend, chunks, config, .. } = self;
        let mut normed = buffer(backend, chunks[chunk].n_rows, config.hidden_size)?;
        backend.norm_rows(&chunks[chunk].residual, norm.get(), &mut normed);
        Ok(backend.download(&mut normed)?.to_vec())
    }

    /// Adds the norm of rows to the residual stream of a chunk.
    fn add_normed(&mut self, chunk: usize, rows: &[f32], norm: &NormWeights<B>) -> Result<(), BackendError> {
        let Self { backend, chunks, config, .. } = self;
        let (n_rows, hidden) = (chunks[chunk].n_rows, config.hidden_size);
        let (mut output, mut normed) = (buffer(backend, n_rows, hidden)?, buffer(backend, n_rows, hidden)?);
        backend.write_rows(&mut output, rows);
        backend.norm_rows(&output, norm.get(), &mut normed);
        backend.add(&mut chunks[chunk].residual, &normed, 1.0);
        Ok(())
    }

    /// The outputs of a linear layer for rows of `cols` columns, both within their bounds.
    fn clipped(&mut self, rows: &[f32], cols: usize, layer: &Clipped<B>) -> Result<Vec<f32>, BackendError> {
        let n_rows = rows.len() / cols;
        let mut input = self.backend.buffer(n_rows, cols)?;
        match layer.input {
            None => self.backend.write_rows(&mut input, rows),
            Some([min, max]) => {
                let bounded: Vec<f32> = rows.iter().map(|value| value.clamp(min, max)).collect();
                self.backend.write_rows(&mut input, &bounded);
            }
        }
        let mut output = buffer(&mut self.backend, n_rows, layer.width)?;
        self.backend.matmul(&input, &layer.linear.weight, None, &mut output);
        let mut rows = self.backend.download(&mut output)?.to_vec();
        if let Some([min, max]) = layer.output {
            rows.iter_mut().for_each(|value| *value = value.clamp(min, max));
        }
        Ok(rows)
    }
}

/// Rows of several products, one beside the other.
fn side_by_side(parts: &[Vec<f32>], n_rows: usize) -> Vec<f32> {
    let mut rows = Vec::with_capacity(parts.iter().map(Vec::len).sum());
    for row in 0..n_rows {
        for part in parts {
            let width = part.len() / n_rows;
            rows.extend_from_slice(&part[row * width..][..width]);
        }
    }
    rows
}
