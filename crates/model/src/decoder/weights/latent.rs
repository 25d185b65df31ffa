//! The tensors of latent attention. Does not know other mixers.

use throng_kernels::quant::{Format, dequantize_row};

use super::{IndexerWeights, Loader, TensorError, weight};
use crate::backend::{Backend, BackendError, DeviceMemory, Linear, MatrixRole};
use crate::config::LatentConfig;
use throng_checkpoint::TensorView;

/// The weights of latent attention.
pub(crate) struct LatentWeights<B: Backend> {
    pub(crate) query: LatentQuery<B>,
    /// The shared rotated key, then the latent vector.
    pub(crate) key_value: Linear<B>,
    /// Gain of the latent vector's norm.
    pub(crate) norm: B::Vector,
    /// Matrix of each head that turns its query into one of latent vectors, `[rank, nope_dim]`.
    pub(crate) absorbed: Vec<B::Matrix>,
    /// Matrix of each head from the latent vector to its value, `[value_dim, rank]`.
    pub(crate) values: Vec<B::Matrix>,
    pub(crate) output: Linear<B>,
    /// Choice of positions; absent in a layer that attends to all positions, or uses the choice of the layer
    /// before.
    pub(crate) indexer: Option<IndexerWeights<B>>,
}

/// Weights from which queries are computed.
pub(crate) struct LatentQuery<B: Backend> {
    /// Matrix and norm of the vector from which queries are computed.
    pub(crate) compression: Option<(Linear<B>, B::Vector)>,
    pub(crate) projection: Linear<B>,
}

/// Matrix that each head's query is multiplied with, and the matrix of its values.
type HeadMatrices<B> = (Vec<<B as DeviceMemory>::Matrix>, Vec<<B as DeviceMemory>::Matrix>);

/// Rows of a matrix in a format of its own.
struct Stored {
    format: Format,
    data: Vec<u8>,
}

impl<B: Backend> Loader<'_, B> {
    pub(super) fn latent_attention(
        &mut self,
        layer: &str,
        latent: &LatentConfig,
    ) -> Result<LatentWeights<B>, TensorError> {
        let (hidden, names) = (self.config.hidden_size, self.names);
        let at = |name: &str| format!("{layer}{name}");
        let query = self.latent_query(layer, latent)?;
        let key_value = self.latent_key_value(&at(names.key_value_compression), latent)?;
        let norm = self.norm(&at(names.key_value_compression_norm), latent.rank)?;
        let (absorbed, values) = self.latent_heads(layer, latent)?;
        let output = at(names.attention_output);
        let width = latent.n_heads * latent.value_dim;
        let output = self.linear(MatrixRole::RowParallel, &[(&output, hidden)], width)?;
        let indexer = self.indexer(layer, latent)?;
        Ok(LatentWeights { query, key_value, norm, absorbed, values, output, indexer })
    }

    fn latent_query(&mut self, layer: &str, latent: &LatentConfig) -> Result<LatentQuery<B>, TensorError> {
        let (hidden, names) = (self.config.hidden_size, self.names);
        let at = |name: &str| format!("{layer}{name}");
        let width = latent.n_heads * (latent.nope_dim + latent.rope_dim);
        let Some(rank) = latent.query_rank else {
            let projection = self.linear(MatrixRole::Router, &[(&at(names.query), width)], hidden)?;
            return Ok(LatentQuery { compression: None, projection });
        };
        let down = self.linear(MatrixRole::Router, &[(&at(names.query_compression), rank)], hidden)?;
        let norm = self.norm(&at(names.query_compression_norm), rank)?;
        let projection = self.linear(MatrixRole::Router, &[(&at(names.query_expansion), width)], rank)?;
        Ok(LatentQuery { compression: Some((down, norm)), projection })
    }

    /// The rows of the rotated key, which are last in the file, before those of the latent vector.
    fn latent_key_value(&mut self, name: &str, latent: &LatentConfig) -> Result<Linear<B>, TensorError> {
        let (hidden, rank) = (self.config.hidden_size, latent.rank);
        let stored = self.stored(&weight(name), [latent.key_dim(), hidden])?;
        let tensor = stored.view();
        let (of_latent, of_key) = tensor.data.split_at(tensor.data.len() / latent.key_dim() * rank);
        let shapes = [[latent.rope_dim, hidden], [rank, hidden]];
        let part = |i: usize, data| TensorView { shape: &shapes[i], data, ..tensor.clone() };
        let weight = self.make(MatrixRole::Router, &[part(0, of_key), part(1, of_latent)])?;
        self.note(stored.n_stored_bytes);
        let bias = format!("{name}.bias");
        if self.find(&bias).is_none() {
            return Ok(Linear { weight, bias: None });
        }
        let mut bias = self.checked(&bias, &[latent.key_dim()])?.numbers();
        bias.rotate_left(rank);
        Ok(Linear { weight, bias: Some(self.backend.vector(&bias)?) })
    }

    /// For each head, the matrix that maps its query into the latent space in place of its keys, and the
    /// matrix of its values.
    fn latent_heads(&mut self, layer: &str, latent: &LatentConfig) -> Result<HeadMatrices<B>, TensorError> {
        let names = self.names;
        let &LatentConfig { n_heads, rank, nope_dim, value_dim, .. } = latent;
        let at = |name: &str| weight(&format!("{layer}{name}"));
        let apart = at(names.key_expansion);
        let (mut absorbed, mut values) = (Vec::new(), Vec::new());
        if !names.key_expansion.is_empty() && self.find(&apart).is_some() {
            let keys = self.checked(&apart, &[n_heads, rank, nope_dim])?;
            let of_values = self.checked(&at(names.value_expansion), &[n_heads, value_dim, rank])?;
            for tensor in [&keys, &of_values] {
                if let Some(factor) = self.factor_name(tensor.name, tensor.format) {
                    return Err(BackendError::Unsupported(format!("{factor}, a factor of heads")).into());
                }
            }
            for head in 0..n_heads {
                absorbed.push(self.head_matrix(&keys, head, [rank, nope_dim])?);
                values.push(self.head_matrix(&of_values, head, [value_dim, rank])?);
            }
            self.note(keys.data.len() + of_values.data.len());
            return Ok((absorbed, values));
        }
        let of_head = nope_dim + value_dim;
        let stored = self.stored(&at(names.key_value_expansion), [n_heads * of_head, rank])?;
        let both = stored.view();
        // Nothing was read, in a check of shapes.
        if both.data.is_empty() {
            return Ok((absorbed, values));
        }
        let row_bytes = both.data.len() / (n_heads * of_head);
        for head in both.data.chunks_exact(of_head * row_bytes) {
            let (keys, of_values) = head.split_at(nope_dim * row_bytes);
            let Stored { format, data } = transposed(both.format, keys, [nope_dim, rank]);
            let view = TensorView { shape: &[rank, nope_dim], format, data: &data, ..both.clone() };
            absorbed.push(self.make(MatrixRole::Router, &[view])?);
            let view = TensorView { shape: &[value_dim, rank], data: of_values, ..both.clone() };
            values.push(self.make(MatrixRole::Router, &[view])?);
        }
        self.note(stored.n_stored_bytes);
        Ok((absorbed, values))
    }

    fn head_matrix(
        &mut self,
        whole: &TensorView<'_>,
        head: usize,
        shape: [usize; 2],
    ) -> Result<B::Matrix, TensorError> {
        let n_bytes = whole.data.len() / whole.shape[0];
        let data = &whole.data[head * n_bytes..][..n_bytes];
        Ok(self.make(MatrixRole::Router, &[TensorView { shape: &shape, data, ..whole.clone() }])?)
    }
}

/// Rows and columns exchanged: in the same format if elements are stored one by one; of formats with blocks,
/// MXFP8 becomes bf16, which represents its numbers exactly, and others f32.
fn transposed(format: Format, data: &[u8], [n_rows, n_cols]: [usize; 2]) -> Stored {
    let exchange = |data: &[u8], size: usize| -> Vec<u8> {
        let element = |row: usize, col: usize| &data[(row * n_cols + col) * size..][..size];
        let places = (0..n_cols).flat_map(|col| (0..n_rows).map(move |row| (row, col)));
        places.flat_map(|(row, col)| element(row, col)).copied().collect()
    };
    if format.block_elements() == 1 {
        return Stored { format, data: exchange(data, format.block_bytes()) };
    }
    let mut numbers = vec![0.0_f32; n_rows * n_cols];
    dequantize_row(format, data, &mut numbers);
    if format == Format::MXFP8 && numbers.iter().all(|number| number.to_bits() & 0xFFFF == 0) {
        let bytes: Vec<u8> =
            numbers.iter().flat_map(|number| ((number.to_bits() >> 16) as u16).to_le_bytes()).collect();
        return Stored { format: Format::BF16, data: exchange(&bytes, size_of::<u16>()) };
    }
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    Stored { format: Format::F32, data: exchange(&bytes, size_of::<f32>()) }
}
