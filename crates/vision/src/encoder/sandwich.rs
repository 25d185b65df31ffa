//! Layers with norms around their blocks and with bounds of what their linear layers read and give. Does not
//! know names of tensors.

use throng_model::backend::{Backend, BackendError, Columns};

use super::attention::EncoderAttention;
use super::{Encoder, Workspace};
use crate::config::EncoderActivation;
use crate::weights::{Clipped, NormWeights, SandwichWeights};
use throng_model::shapes::Activation;

impl<B: Backend> Encoder<B> {
    pub(super) fn sandwich(
        &mut self,
        layer_idx: usize,
        weights: &SandwichWeights<B>,
        attention: &mut EncoderAttention<B>,
        ws: &mut Workspace<B>,
    ) -> Result<(), BackendError> {
        let hidden = self.config.hidden_size;
        let input = self.normed(&ws.residual, &weights.attention_norm)?;
        let parts = [0, 1, 2].map(|i| self.clipped(&input, hidden, &weights.heads[i]));
        let [queries, keys, values] = parts;
        let parts = [queries?, keys?, values?];
        self.backend.write_rows(&mut ws.qkv, &side_by_side(&parts, attention.n_rows()));
        let shape = *attention.shape();
        let columns = [Columns::of_queries(&shape), Columns::of_keys(&shape), Columns::of_values(&shape)];
        let norms = [&weights.query_norm, &weights.key_norm, &weights.value_norm];
        for (columns, norm) in columns.into_iter().zip(norms) {
            self.backend.norm_columns(&mut ws.qkv, columns, norm.get());
        }
        attention.attend(&mut self.backend, layer_idx, &mut ws.qkv, &mut ws.attended);
        let attended = self.backend.download(&mut ws.attended)?.to_vec();
        let output = self.clipped(&attended, shape.n_heads * shape.head_dim, &weights.output)?;
        self.add_normed(&output, &weights.attention_post_norm, ws)?;
        let input = self.normed(&ws.residual, &weights.mlp_norm)?;
        let gate_up =
            [self.clipped(&input, hidden, &weights.gate)?, self.clipped(&input, hidden, &weights.up)?];
        let width = self.config.mlp_width;
        let mut gates = self.buffer(attention.n_rows(), 2 * width)?;
        self.backend.write_rows(&mut gates, &side_by_side(&gate_up, attention.n_rows()));
        let mut activated = self.buffer(attention.n_rows(), width)?;
        let activation = match self.config.activation {
            EncoderActivation::Plain(activation) => activation,
            EncoderActivation::QuickGelu => Activation::GeluTanh,
        };
        self.backend.glu(&gates, activation, &mut activated);
        let activated = self.backend.download(&mut activated)?.to_vec();
        let output = self.clipped(&activated, width, &weights.down)?;
        self.add_normed(&output, &weights.mlp_post_norm, ws)
    }

    fn normed(&mut self, residual: &B::Buffer, norm: &NormWeights<B>) -> Result<Vec<f32>, BackendError> {
        let n_rows = self.backend.n_rows(residual);
        let mut normed = self.buffer(n_rows, self.config.hidden_size)?;
        self.backend.norm_rows(residual, norm.get(), &mut normed);
        Ok(self.backend.download(&mut normed)?.to_vec())
    }

    /// Adds the norm of rows to the residual stream.
    fn add_normed(
        &mut self,
        rows: &[f32],
        norm: &NormWeights<B>,
        ws: &mut Workspace<B>,
    ) -> Result<(), BackendError> {
        let (n_rows, hidden) = (self.backend.n_rows(&ws.residual), self.config.hidden_size);
        let (mut output, mut normed) = (self.buffer(n_rows, hidden)?, self.buffer(n_rows, hidden)?);
        self.backend.write_rows(&mut output, rows);
        self.backend.norm_rows(&output, norm.get(), &mut normed);
        self.backend.add(&mut ws.residual, &normed, 1.0);
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
        let mut output = self.buffer(n_rows, layer.width)?;
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
