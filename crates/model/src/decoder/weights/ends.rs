//! The tensors before the first layer and after the last one: the embedding and the head. Does not know
//! layers.

use super::{EmbeddingWeights, EncoderWeights, HeadWeights, Loader, TensorError, weight};
use crate::arch::TensorNames;
use crate::backend::{Backend, MatrixRole};
use crate::config::Stage;

impl<B: Backend> Loader<'_, B> {
    /// Whether the output projection has a tensor of its own.
    fn is_untied(&self, names: &TensorNames) -> bool {
        !self.config.tied_embeddings && self.has(&weight(names.output))
    }

    /// The embedding table, which is also the output projection of a stage with both where the model has one
    /// matrix for them.
    pub(super) fn embedding_table(
        &mut self,
        names: &TensorNames,
        stage: &Stage,
    ) -> Result<B::Matrix, TensorError> {
        let is_output = stage.has_head && !self.is_untied(names);
        let role = if is_output { MatrixRole::Output } else { MatrixRole::Embedding };
        self.matrix(role, &[(names.embedding, self.config.n_table_rows())], self.config.hidden_size)
    }

    pub(super) fn head(&mut self, names: &TensorNames, stage: &Stage) -> Result<HeadWeights<B>, TensorError> {
        let config = self.config;
        let (vocabulary, hidden) = (config.n_table_rows(), config.hidden_size);
        let is_untied = self.is_untied(names);
        let name = if is_untied { names.output } else { names.embedding };
        let output = || self.matrix(MatrixRole::Output, &[(name, vocabulary)], hidden);
        let output = (is_untied || !stage.embeds).then(output).transpose()?;
        let norm = || self.row_norm(names.final_norm, hidden, config.final_norm_gain_offset);
        let norm = config.has_final_norm.then(norm).transpose()?;
        let bias = format!("{}.bias", names.output);
        let has_bias = is_untied && self.find(&bias).is_some();
        let bias = has_bias.then(|| self.vector(&bias, vocabulary)).transpose()?;
        Ok(HeadWeights { norm, output, bias })
    }

    /// All of the embedding, with its table.
    pub(super) fn embedding(
        &mut self,
        names: &TensorNames,
        table: B::Matrix,
        encoder: Option<EncoderWeights<B>>,
    ) -> Result<EmbeddingWeights<B>, TensorError> {
        let config = self.config;
        let ones = || self.backend.vector(&vec![1.0; config.hidden_size]);
        let norm = config.normalizes_embeddings.then(ones).transpose()?;
        let per_layer = config.per_layer_width.map(|width| self.per_layer_embedding(names, width));
        Ok(EmbeddingWeights { table, norm, encoder, per_layer: per_layer.transpose()? })
    }
}
