//! The tensors of scores by distance: a table of biases, or embeddings of buckets, which are multiplied with
//! the matrices of queries and keys while a model is loaded. Does not know how distances are sorted into
//! buckets.

use throng_kernels::quant::{Format, dequantize_row};

use super::{Loader, TensorError, weight};
use crate::arch::TensorNames;
use crate::backend::{Backend, MatrixRole};
use crate::config::{AttentionConfig, RelativeKind};
use throng_checkpoint::TensorView;

/// Weights of scores by distance in a layer.
pub(crate) struct RelativeWeights<B: Backend> {
    /// `[n_heads, n_buckets]`.
    pub(crate) bias: Option<B::Vector>,
    /// Keys of buckets for each head, `[n_buckets, head_dim]`.
    pub(crate) keys: Option<Vec<B::Matrix>>,
    /// Queries of buckets for each head, `[n_buckets, head_dim]`.
    pub(crate) queries: Option<Vec<B::Matrix>>,
}

/// The table that all layers share: biases, `[n_buckets, n_heads]`, or embeddings, `[n_buckets, hidden]`,
/// normed. Empty in a check of shapes, which reads no weights.
#[derive(Debug, Default)]
pub(super) struct RelativeTable(Vec<f32>);

impl<B: Backend> Loader<'_, B> {
    pub(super) fn relative_table(&mut self, names: &TensorNames) -> Result<RelativeTable, TensorError> {
        let Some(relative) = &self.config.relative else { return Ok(RelativeTable::default()) };
        let (hidden, eps) = (self.config.hidden_size, f64::from(self.config.norm_eps));
        let n_heads = self.config.attentions().map(|attention| attention.n_heads).max().unwrap_or(0);
        let (n_columns, has_norm) = match relative.kind {
            RelativeKind::Bias => (n_heads, false),
            RelativeKind::Disentangled { has_norm, .. } => (hidden, has_norm),
        };
        let tensor = self.checked(&weight(names.relative), &[relative.n_buckets, n_columns])?;
        let mut table = tensor.numbers();
        self.note(tensor.data.len());
        if !has_norm {
            return Ok(RelativeTable(table));
        }
        let norm = |end: &str| {
            Ok::<_, TensorError>(
                self.checked(&format!("{}.{end}", names.relative_norm), &[hidden])?.numbers(),
            )
        };
        let (gain, bias) = (norm("weight")?, norm("bias")?);
        for row in table.chunks_exact_mut(hidden) {
            let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / hidden as f64;
            let variance = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / hidden as f64;
            let inverse = 1.0 / (variance + eps).sqrt();
            for ((x, gain), bias) in row.iter_mut().zip(&gain).zip(&bias) {
                *x = ((f64::from(*x) - mean) * inverse) as f32 * gain + bias;
            }
        }
        Ok(RelativeTable(table))
    }

    pub(super) fn relative_weights(
        &mut self,
        layer: &str,
        attention: &AttentionConfig,
    ) -> Result<Option<RelativeWeights<B>>, TensorError> {
        let Some(relative) = &self.config.relative else { return Ok(None) };
        let (n_buckets, n_heads) = (relative.n_buckets, attention.n_heads);
        let (has_keys, has_queries, shares) = match relative.kind {
            RelativeKind::Bias => {
                let table = &self.relative.0;
                let of_head = |head: usize| table.iter().skip(head).step_by(n_heads).copied();
                let bias: Vec<f32> = (0..n_heads).flat_map(of_head).collect();
                let bias = Some(self.backend.vector(&bias)?);
                return Ok(Some(RelativeWeights { bias, keys: None, queries: None }));
            }
            RelativeKind::Disentangled { has_keys, has_queries, shares_projections, .. } => {
                (has_keys, has_queries, shares_projections)
            }
        };
        let names = match shares {
            true => [self.names.key, self.names.query],
            false => [self.names.relative_key, self.names.relative_query],
        };
        let [keys, queries] = [(has_keys, names[0]), (has_queries, names[1])].map(|(is_there, name)| {
            let name = format!("{layer}{name}");
            is_there.then(|| self.bucket_heads(&name, attention, n_buckets)).transpose()
        });
        Ok(Some(RelativeWeights { bias: None, keys: keys?, queries: queries? }))
    }

    /// Products of the embeddings of buckets with a matrix, with its bias, for each head.
    fn bucket_heads(
        &mut self,
        name: &str,
        attention: &AttentionConfig,
        n_buckets: usize,
    ) -> Result<Vec<B::Matrix>, TensorError> {
        let (hidden, head_dim, width) =
            (self.config.hidden_size, attention.head_dim, attention.query_width());
        let stored = self.stored(&weight(name), [width, hidden])?;
        let bias = format!("{name}.bias");
        let bias = match self.find(&bias) {
            Some(_) => self.checked(&bias, &[width])?.numbers(),
            None => vec![0.0; width],
        };
        let view = stored.view();
        // Nothing was read, in a check of shapes.
        if view.data.is_empty() || self.relative.0.is_empty() {
            return Ok(Vec::new());
        }
        let row_bytes = view.data.len() / width;
        let mut row = vec![0.0; hidden];
        let mut of_heads = vec![0.0_f32; width * n_buckets];
        for (place, bytes) in view.data.chunks_exact(row_bytes).enumerate() {
            dequantize_row(view.format, bytes, &mut row);
            let (head, element) = (place / head_dim, place % head_dim);
            for (bucket, embedding) in self.relative.0.chunks_exact(hidden).enumerate() {
                of_heads[(head * n_buckets + bucket) * head_dim + element] =
                    dot(&row, embedding) + bias[place];
            }
        }
        let data: Vec<u8> = of_heads.iter().flat_map(|x| x.to_le_bytes()).collect();
        let shape = [n_buckets, head_dim];
        let n_bytes = n_buckets * head_dim * size_of::<f32>();
        let part = |data| TensorView { name: view.name, shape: &shape, format: Format::F32, data };
        let matrices = data.chunks_exact(n_bytes).map(|data| self.make(MatrixRole::Router, &[part(data)]));
        Ok(matrices.collect::<Result<_, _>>()?)
    }
}

/// A product of vectors, as eight sums side by side.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0_f32; 8];
    let (a_parts, a_rest) = a.as_chunks::<8>();
    let (b_parts, b_rest) = b.as_chunks::<8>();
    for (a, b) in a_parts.iter().zip(b_parts) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}
