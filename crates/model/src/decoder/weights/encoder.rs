//! The tensors of layer norms and of the encoders' further embeddings. Does not know layers.

use super::{EncoderWeights, Loader, NormWeights, TensorError};
use crate::arch::TensorNames;
use crate::backend::{Backend, MatrixRole};
use crate::config::{EncoderEmbedding, NormKind};

impl<B: Backend> Loader<'_, B> {
    pub(super) fn encoder_embedding(
        &mut self,
        names: &TensorNames,
        encoder: EncoderEmbedding,
    ) -> Result<EncoderWeights<B>, TensorError> {
        let hidden = self.config.hidden_size;
        let mut table =
            |name: &str, n_rows: usize| self.matrix(MatrixRole::Embedding, &[(name, n_rows)], hidden);
        let positions = encoder.positions.map(|positions| table(names.positions, positions.n_rows));
        let positions = positions.transpose()?;
        let segments = (encoder.n_segments > 0).then(|| table(names.segments, encoder.n_segments));
        let segments = segments.transpose()?;
        let norm = self.row_norm(names.embedding_norm, hidden, 0.0)?;
        Ok(EncoderWeights { positions, segments, norm })
    }

    /// A norm of the model's kind. Checkpoints that were converted from TensorFlow call gain and bias `gamma`
    /// and `beta`.
    pub(super) fn row_norm(
        &mut self,
        name: &str,
        width: usize,
        offset: f32,
    ) -> Result<NormWeights<B>, TensorError> {
        if self.config.norm_kind == NormKind::RootMeanSquare {
            return Ok(NormWeights { gain: self.norm_with(name, width, offset)?, bias: None });
        }
        let [gamma, beta] = ["gamma", "beta"].map(|end| format!("{name}.{end}"));
        if self.find(&gamma).is_some() {
            let (gain, bias) = (self.vector(&gamma, width)?, self.vector(&beta, width)?);
            return Ok(NormWeights { gain, bias: Some(bias) });
        }
        let gain = self.norm_with(name, width, offset)?;
        let bias = format!("{name}.bias");
        let bias = match self.find(&bias) {
            Some(_) => self.vector(&bias, width)?,
            None => self.backend.vector(&vec![0.0; width])?,
        };
        Ok(NormWeights { gain, bias: Some(bias) })
    }
}
