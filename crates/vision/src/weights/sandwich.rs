//! The tensors of layers with norms around their blocks and with bounds of the inputs and outputs of their
//! linear layers. Does not know arithmetic.

use throng_model::backend::{Backend, Linear, MatrixRole};
use throng_model::decoder::weights::TensorError;

use super::{Loader, NormWeights, StoredMatrix};
use crate::config::Sandwich;
use crate::families::half_pairs;
use crate::names::{Heads, LayerNames};

/// A layer with norms around its blocks.
pub struct SandwichWeights<B: Backend> {
    pub(crate) attention_norm: NormWeights<B>,
    pub(crate) attention_post_norm: NormWeights<B>,
    pub(crate) mlp_norm: NormWeights<B>,
    pub(crate) mlp_post_norm: NormWeights<B>,
    /// Queries, keys and values.
    pub(crate) heads: [Clipped<B>; 3],
    pub(crate) query_norm: NormWeights<B>,
    pub(crate) key_norm: NormWeights<B>,
    /// A gain of ones.
    pub(crate) value_norm: NormWeights<B>,
    pub(crate) output: Clipped<B>,
    pub(crate) gate: Clipped<B>,
    pub(crate) up: Clipped<B>,
    pub(crate) down: Clipped<B>,
}

/// A linear layer whose inputs and outputs are bounded.
pub struct Clipped<B: Backend> {
    pub(crate) linear: Linear<B>,
    /// Number of columns of the output.
    pub(crate) width: usize,
    pub(crate) input: Option<[f32; 2]>,
    pub(crate) output: Option<[f32; 2]>,
}

impl<B: Backend> Loader<'_, B> {
    pub(super) fn sandwich(
        &self,
        layer: &str,
        names: &LayerNames,
        sandwich: Sandwich,
    ) -> Result<SandwichWeights<B>, TensorError> {
        let config = self.config;
        let (hidden, dim) = (config.hidden_size, config.head_dim);
        let (n_queries, n_keys) = (config.n_heads * dim, config.n_kv_heads * dim);
        let at = |name: &str| format!("{layer}{name}");
        let norm = |name: &str| self.norm(&at(name), hidden, config.norm);
        let clipped = |name: &str, shape, permute| self.clipped(&at(name), shape, permute, sandwich.clips);
        let Heads::Apart([query, key, value]) = names.query_key_value else {
            return Err(super::missing(&at("self_attn.q_proj")));
        };
        let head_norm = |name: &str| -> Result<NormWeights<B>, TensorError> {
            let gain = self.numbers(&at(name), dim)?;
            let gain: Vec<f32> = half_pairs(dim).map(|i| gain[i]).collect();
            Ok(NormWeights { gain: self.backend.vector(&gain)?, bias: None, eps: config.norm.eps })
        };
        let width = config.mlp_width;
        Ok(SandwichWeights {
            attention_norm: norm(names.attention_norm)?,
            attention_post_norm: norm(names.attention_post_norm)?,
            mlp_norm: norm(names.mlp_norm)?,
            mlp_post_norm: norm(names.mlp_post_norm)?,
            heads: [
                clipped(query, [n_queries, hidden], true)?,
                clipped(key, [n_keys, hidden], true)?,
                clipped(value, [n_keys, hidden], false)?,
            ],
            query_norm: head_norm("self_attn.q_norm.weight")?,
            key_norm: head_norm("self_attn.k_norm.weight")?,
            value_norm: self.plain_norm(dim, config.norm.eps)?,
            output: clipped(names.output, [hidden, n_queries], false)?,
            gate: clipped(names.gate, [width, hidden], false)?,
            up: clipped(names.up, [width, hidden], false)?,
            down: clipped(names.down, [hidden, width], false)?,
        })
    }

    /// A linear layer with its bounds. `permute` puts the rows of each head into the order in which they are
    /// rotated.
    fn clipped(
        &self,
        name: &str,
        [rows, cols]: [usize; 2],
        permute: bool,
        clips: bool,
    ) -> Result<Clipped<B>, TensorError> {
        let inner = format!("{name}.linear.weight");
        let weight = if self.source.tensor(&inner).is_some() { inner } else { format!("{name}.weight") };
        let stored = self.stored(&weight, [rows, cols])?;
        let matrix = if permute {
            let (numbers, dim) = (stored.numbers(), self.config.head_dim);
            let row = |head: usize| half_pairs(dim).map(move |i| head * dim + i);
            let rows_of = (0..rows / dim).flat_map(row);
            let permuted: Vec<f32> =
                rows_of.flat_map(|row| &numbers[row * cols..][..cols]).copied().collect();
            let permuted = StoredMatrix::of_numbers(&weight, [rows, cols], &permuted);
            self.backend.matrix(MatrixRole::Router, &[permuted.view()])?
        } else {
            self.backend.matrix(MatrixRole::Router, &[stored.view()])?
        };
        let bounds = |side: &str| -> Result<Option<[f32; 2]>, TensorError> {
            if !clips {
                return Ok(None);
            }
            let bound =
                |end: &str| Ok::<_, TensorError>(self.numbers(&format!("{name}.{side}_{end}"), 1)?[0]);
            Ok(Some([bound("min")?, bound("max")?]))
        };
        let linear = Linear { weight: matrix, bias: None };
        Ok(Clipped { linear, width: rows, input: bounds("input")?, output: bounds("output")? })
    }
}
