//! The embeddings of an encoder: those of tokens, positions and segments, summed and normed. Does not know
//! layers.

use super::Workspace;
use super::weights::EncoderWeights;
use crate::backend::{Backend, BackendError};
use crate::batch_input::BatchInput;
use crate::config::DecoderConfig;

/// Rows of a table to be looked up, as the tokens of a batch.
pub(super) struct Lookup<B: Backend> {
    rows: BatchInput,
    batch: B::Batch,
}

impl<B: Backend> Lookup<B> {
    pub(super) fn new(backend: &B) -> Result<Self, BackendError> {
        Ok(Self { rows: BatchInput::default(), batch: backend.batch()? })
    }

    fn embed(
        &mut self,
        backend: &mut B,
        table: &B::Matrix,
        rows: impl Iterator<Item = u32>,
        scale: f32,
        out: &mut B::Buffer,
    ) {
        self.rows.tokens.clear();
        self.rows.tokens.extend(rows);
        backend.upload(&self.rows, &mut self.batch);
        backend.embed(table, &self.batch, scale, out);
    }
}

/// Computes the residual stream of a step's tokens, whose ids contain their segments too.
pub(super) fn embed_segments<B: Backend>(
    backend: &mut B,
    config: &DecoderConfig,
    embedding: &B::Matrix,
    weights: &EncoderWeights<B>,
    input: &BatchInput,
    ws: &mut Workspace<B>,
) {
    let Workspace { lookup, residual, input: part, .. } = ws;
    let lookup = lookup.as_mut().expect("an encoder has a lookup");
    let (vocabulary, scale) = (config.vocabulary_size as u32, config.embedding_scale);
    let tokens = input.tokens.iter().map(|id| id % vocabulary);
    lookup.embed(backend, embedding, tokens, scale, residual);
    let positions = config.encoder.and_then(|encoder| encoder.positions);
    if let Some((table, positions)) = weights.positions.as_ref().zip(positions) {
        let rows = input.positions.iter().map(|position| position + positions.first_row as u32);
        lookup.embed(backend, table, rows, 1.0, part);
        backend.add(residual, part, 1.0);
    }
    if let Some(table) = &weights.segments {
        lookup.embed(backend, table, input.tokens.iter().map(|id| id / vocabulary), 1.0, part);
        backend.add(residual, part, 1.0);
    }
    backend.norm_rows(residual, weights.norm.with(config.norm_eps), part);
    std::mem::swap(residual, part);
}
