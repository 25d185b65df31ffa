//! Finds the tensors of an EAGLE-3 head, checks their shapes and copies them to a device. Does not know
//! arithmetic.

use std::collections::BTreeSet;

use throng_core::request::TokenId;

use super::config::{HeadConfig, N_FEATURES};
use crate::backend::{Backend, GatedMlp, Linear, MatrixRole};
use crate::decoder::weights::TensorError;
use throng_checkpoint::safetensors::{Dtype, RawTensor, SafetensorsFolder};
use throng_checkpoint::{TensorSource, TensorView};

/// The weights of a head on a device. A matrix for several concatenated inputs is stored as one matrix for
/// each input, whose products are added.
pub(crate) struct HeadWeights<B: Backend> {
    /// Projections of each of the layers that the head reads to its own width.
    pub(super) features: [B::Matrix; N_FEATURES],
    /// Absent where the head reads the model's table.
    pub(super) embedding: Option<B::Matrix>,
    pub(super) token_norm: B::Vector,
    pub(super) feature_norm: B::Vector,
    pub(super) query_key_value_of_token: Linear<B>,
    pub(super) query_key_value_of_feature: B::Matrix,
    pub(super) attention_output: Linear<B>,
    pub(super) feed_forward_norm: B::Vector,
    pub(super) feed_forward: GatedMlp<B>,
    pub(super) final_norm: B::Vector,
    /// `[draft vocabulary, hidden]`.
    pub(super) output: B::Matrix,
    /// The model's token of each draft token.
    pub(super) target_tokens: Vec<TokenId>,
}

/// Tensors without further information: a list of the model's tokens that the head has, and old tables of
/// rotary embeddings.
const UNREAD: [&str; 3] =
    ["t2d", "midlayer.self_attn.rotary_emb.inv_freq", "layers.0.self_attn.rotary_emb.inv_freq"];

impl<B: Backend> HeadWeights<B> {
    /// Checks all tensors and copies them to the device. Drafts are tokens below `vocabulary_size`.
    ///
    /// # Errors
    /// When a tensor is missing, unknown, or has another shape than the configuration says, or memory does
    /// not suffice.
    pub(crate) fn load(
        backend: &B,
        config: &HeadConfig,
        source: &SafetensorsFolder,
        vocabulary_size: usize,
    ) -> Result<Self, TensorError> {
        let layer =
            if source.raw("layers.0.self_attn.q_proj.weight").is_some() { "layers.0." } else { "midlayer." };
        let mut loader = Loader { backend, source, layer, used: UNREAD.map(str::to_owned).into() };
        let decoder = &config.decoder;
        let (hidden, width, attention) = (decoder.hidden_size, config.feed_forward_width, &config.attention);
        let (query, key) =
            (attention.n_heads * attention.head_dim, attention.n_kv_heads * attention.head_dim);
        let projections = ["q_proj", "k_proj", "v_proj"].map(|name| format!("self_attn.{name}"));
        let projections: Vec<_> =
            projections.iter().zip([query, key, key]).map(|(name, rows)| (name.as_str(), rows)).collect();
        let of_queries = MatrixRole::QueryKeyValue { n_query_rows: query, n_key_rows: key };
        let mut features = Vec::new();
        for idx in 0..N_FEATURES {
            let piece = Piece { idx, n_pieces: N_FEATURES, cols: config.target_hidden_size };
            // Every device has all of it.
            features.push(loader.matrix(MatrixRole::Router, &[("fc", hidden)], piece)?);
        }
        let both = |idx| Piece { idx, n_pieces: 2, cols: hidden };
        let mlp = [("mlp.gate_proj", width), ("mlp.up_proj", width)];
        let weights = Self {
            features: features.try_into().unwrap_or_else(|_| unreachable!("one for each layer")),
            embedding: loader.embedding(decoder.vocabulary_size, hidden)?,
            token_norm: loader.vector("input_layernorm.weight", hidden)?,
            feature_norm: loader.vector("hidden_norm.weight", hidden)?,
            query_key_value_of_token: loader.linear(of_queries, &projections, both(0))?,
            query_key_value_of_feature: loader.matrix(of_queries, &projections, both(1))?,
            attention_output: loader.linear(
                MatrixRole::RowParallel,
                &[("self_attn.o_proj", hidden)],
                Piece::whole(query),
            )?,
            feed_forward_norm: loader.vector("post_attention_layernorm.weight", hidden)?,
            feed_forward: GatedMlp {
                width,
                gate_up: loader.linear(MatrixRole::GateUp, &mlp, Piece::whole(hidden))?,
                down: loader.linear(
                    MatrixRole::RowParallel,
                    &[("mlp.down_proj", hidden)],
                    Piece::whole(width),
                )?,
            },
            final_norm: loader.vector("norm.weight", hidden)?,
            output: loader.matrix(
                MatrixRole::Output,
                &[("lm_head", config.draft_vocabulary_size)],
                Piece::whole(hidden),
            )?,
            target_tokens: loader.target_tokens(config.draft_vocabulary_size, vocabulary_size)?,
        };
        loader.check_all_used()?;
        Ok(weights)
    }
}

/// Piece number `idx` of a stored matrix, whose rows consist of `n_pieces` pieces of `cols` columns.
#[derive(Debug, Clone, Copy)]
struct Piece {
    idx: usize,
    n_pieces: usize,
    cols: usize,
}

impl Piece {
    fn whole(cols: usize) -> Self {
        Self { idx: 0, n_pieces: 1, cols }
    }

    fn cut(self, tensor: &TensorView<'_>) -> Vec<u8> {
        let row_bytes = tensor.data.len() / tensor.shape[0].max(1);
        let n_bytes = row_bytes / self.n_pieces;
        let rows = tensor.data.chunks_exact(row_bytes.max(1));
        rows.flat_map(|row| &row[self.idx * n_bytes..][..n_bytes]).copied().collect()
    }
}

struct Loader<'a, B: Backend> {
    backend: &'a B,
    source: &'a SafetensorsFolder,
    /// Prefix of the names of the layer's tensors.
    layer: &'static str,
    used: BTreeSet<String>,
}

impl<'a, B: Backend> Loader<'a, B> {
    /// A tensor by its name, or by its name within the layer.
    fn find(&mut self, name: &str) -> Option<TensorView<'a>> {
        let of_layer = format!("{}{name}", self.layer);
        let found = self.source.tensor(name).or_else(|| self.source.tensor(&of_layer))?;
        self.used.insert(found.name.to_owned());
        Some(found)
    }

    fn checked(&mut self, name: &str, expected: &[usize]) -> Result<TensorView<'a>, TensorError> {
        let tensor = self.find(name).ok_or_else(|| TensorError::Missing { name: name.to_owned() })?;
        if tensor.shape == expected {
            return Ok(tensor);
        }
        Err(TensorError::Shape {
            name: name.to_owned(),
            expected: expected.to_vec(),
            found: tensor.shape.to_vec(),
        })
    }

    fn vector(&mut self, name: &str, width: usize) -> Result<B::Vector, TensorError> {
        let tensor = self.checked(name, &[width])?;
        Ok(self.backend.vector(&tensor.numbers())?)
    }

    /// A piece of tensors of some rows each, stacked.
    fn matrix(
        &mut self,
        role: MatrixRole,
        parts: &[(&str, usize)],
        piece: Piece,
    ) -> Result<B::Matrix, TensorError> {
        let mut pieces = Vec::new();
        for &(name, rows) in parts {
            let tensor = self.checked(&format!("{name}.weight"), &[rows, piece.cols * piece.n_pieces])?;
            pieces.push((tensor.name, tensor.format, [rows, piece.cols], piece.cut(&tensor)));
        }
        let views = pieces.iter().map(|(name, format, shape, data)| TensorView {
            name,
            shape,
            format: *format,
            data,
        });
        Ok(self.backend.matrix(role, &views.collect::<Vec<_>>())?)
    }

    /// Loads a linear layer with its biases, if there are any.
    fn linear(
        &mut self,
        role: MatrixRole,
        parts: &[(&str, usize)],
        piece: Piece,
    ) -> Result<Linear<B>, TensorError> {
        let weight = self.matrix(role, parts, piece)?;
        let (mut biases, mut any) = (Vec::new(), false);
        for (name, rows) in parts {
            let name = format!("{name}.bias");
            let end = biases.len() + rows;
            if self.find(&name).is_some() {
                biases.extend(self.checked(&name, &[*rows])?.numbers());
                any = true;
            }
            biases.resize(end, 0.0);
        }
        let bias = any.then(|| self.backend.vector(&biases)).transpose()?;
        Ok(Linear { weight, bias })
    }

    fn embedding(&mut self, vocabulary: usize, hidden: usize) -> Result<Option<B::Matrix>, TensorError> {
        if self.find("embed_tokens.weight").is_none() {
            return Ok(None);
        }
        let parts = [("embed_tokens", vocabulary)];
        self.matrix(MatrixRole::Embedding, &parts, Piece::whole(hidden)).map(Some)
    }

    /// `d2t` holds, for each draft token, the difference to the model's token; without it the tokens are
    /// equal.
    fn target_tokens(
        &mut self,
        n_drafts: usize,
        vocabulary_size: usize,
    ) -> Result<Vec<TokenId>, TensorError> {
        self.used.insert("d2t".to_owned());
        let offsets = match self.source.raw("d2t") {
            None => vec![0; n_drafts],
            Some(RawTensor { dtype: Dtype::I64, data, .. }) => {
                let offset = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().unwrap_or_default());
                data.chunks_exact(8).map(offset).collect()
            }
            Some(RawTensor { dtype: Dtype::I32, data, .. }) => {
                let offset =
                    |bytes: &[u8]| i64::from(i32::from_le_bytes(bytes.try_into().unwrap_or_default()));
                data.chunks_exact(4).map(offset).collect()
            }
            Some(RawTensor { shape, .. }) => return Err(wrong_d2t(shape)),
        };
        let token = |(idx, offset): (usize, &i64)| {
            let token = (idx as i64).checked_add(*offset).and_then(|token| u32::try_from(token).ok());
            token.filter(|&token| (token as usize) < vocabulary_size)
        };
        let tokens: Option<Vec<TokenId>> = offsets.iter().enumerate().map(token).collect();
        tokens.filter(|tokens| tokens.len() == n_drafts).ok_or_else(|| wrong_d2t(&[offsets.len()]))
    }

    fn check_all_used(&self) -> Result<(), TensorError> {
        let unknown = self.source.names().into_iter().find(|name| !self.used.contains(*name));
        unknown.map_or(Ok(()), |name| Err(TensorError::Unknown { name: name.to_owned() }))
    }
}

fn wrong_d2t(shape: &[usize]) -> TensorError {
    let what = format!(
        "d2t of shape {shape:?}: it must hold an integer for each draft token, that leads to a token of the model"
    );
    TensorError::Malformed { what }
}
