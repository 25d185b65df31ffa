//! The part of a model that one process of several has. Does not know how its weights are read.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::cuts::divided_by_columns;
use crate::arch::Architecture;
use crate::config::{DecoderConfig, ShardBlocks, ShardError, Stage, StageError};
use crate::decoder::weights::{encoded_name, find_byte_tensor, find_tensor};
use crate::load::{LoadError, LoadedModel};
use crate::quantization::QuantizePlan;
use throng_checkpoint::TensorSource;
use throng_kernels::quant::Format;

/// Which part of a model a process has: of each layer of a stage, the share of one of several ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelPart {
    /// Index among the ranks that share each layer.
    pub rank: usize,
    /// Number of these ranks.
    pub n_ranks: usize,
    /// Index of the stage, in the order in which tokens pass them.
    pub stage_idx: usize,
    /// Number of stages.
    pub n_stages: usize,
}

impl ModelPart {
    /// All of a model.
    pub const WHOLE: Self = Self { rank: 0, n_ranks: 1, stage_idx: 0, n_stages: 1 };
}

/// Reason why a model has no such part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    /// Its layers cannot be divided.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// It has no such stages.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// Pooling models are not divided.
    #[error("a model that answers with vectors is not divided")]
    Pooling,
}

/// The part that a [`LoadedModel`] is.
pub(crate) struct OwnPart {
    /// The architecture before layers were divided.
    pub(crate) whole: DecoderConfig,
    pub(crate) stage: Stage,
}

impl LoadedModel {
    /// Restricts the model to a part, before any weights are prepared.
    ///
    /// # Errors
    /// When the model has no such part.
    pub fn part(self, part: ModelPart) -> Result<Self, LoadError> {
        if part == ModelPart::WHOLE {
            return Ok(self);
        }
        if self.pooler.is_some() {
            return Err(PartError::Pooling.into());
        }
        let whole = (*self.config).clone();
        let weights = self.layer_bytes();
        let stages = Stage::split_by(&whole, &weights, part.n_stages).map_err(PartError::from)?;
        let no_stage = StageError::Stages { n_stages: part.n_stages, n_layers: whole.layers.len() };
        let stage = stages.into_iter().nth(part.stage_idx).ok_or(PartError::Stage(no_stage))?;
        let blocks = self.shard_blocks();
        let config = whole.shard(part.rank, part.n_ranks, blocks).map_err(PartError::from)?;
        Ok(self.with_part(OwnPart { whole, stage }, Arc::new(config)))
    }

    /// Bytes of the weights of each layer, with those of the embedding before the first one and those of the
    /// head behind the last one.
    fn layer_bytes(&self) -> Vec<u64> {
        let (config, names, source) = (&self.config, self.names(), self.tensors());
        let n_layers = config.layers.len();
        let mut bytes = vec![0_u64; n_layers + 2];
        let mut by_layer: HashMap<String, usize> = HashMap::new();
        for layer_idx in 0..n_layers {
            by_layer.insert(format!("{}{layer_idx}", names.layer_prefix), layer_idx);
        }
        let layer_of = |name: &str| {
            let dots = name.match_indices('.').map(|(at, _)| at);
            let mut ends = dots.filter_map(|end| {
                let start = name.find(names.layer_prefix)?;
                by_layer.get(name.get(start..end)?).copied()
            });
            ends.next()
        };
        let mut add = |name: &str, n_bytes: u64| {
            let place = match layer_of(name) {
                Some(layer_idx) => layer_idx + 1,
                None if name.contains(names.output) && !config.tied_embeddings => n_layers + 1,
                // A tied table is read where the logits are made.
                None if config.tied_embeddings => n_layers + 1,
                None => return,
            };
            bytes[place] += n_bytes;
        };
        for tensor in source.names().into_iter().filter_map(|name| source.tensor(name)) {
            add(tensor.name, self.held_bytes(&tensor));
        }
        for tensor in source.byte_names().into_iter().filter_map(|name| source.byte_tensor(name)) {
            add(tensor.name, tensor.data.len() as u64);
        }
        for name in source.encoded_names() {
            let n_bytes = source.encoded_weight(&name).map_or(0, |weight| weight.n_stored_bytes);
            add(&name, n_bytes);
        }
        bytes
    }
}

/// Weights that are held together in the rows of matrices that are divided by columns: the longest blocks of
/// all layers.
pub(crate) fn shard_blocks(
    architecture: &Architecture,
    source: &dyn TensorSource,
    quantize: Option<QuantizePlan>,
) -> ShardBlocks {
    let block = |name: &String| {
        if let Some(tensor) = find_tensor(source, name) {
            let held = quantize.map_or(tensor.format, |plan| plan.format_of(&tensor));
            return Some(held.block_elements().max(tensor.format.block_elements()));
        }
        if find_byte_tensor(source, name).is_some() {
            return Some(Format::MXFP4.block_elements());
        }
        let weight = source.encoded_weight(&encoded_name(source, name)?)?;
        let held = quantize.filter(|_| weight.held.is_float()).map_or(weight.held, |plan| plan.to.format());
        Some(held.block_elements().max(weight.held.block_elements()))
    };
    let [mixer, feed_forward, experts] =
        divided_by_columns(architecture).map(|names| names.iter().filter_map(block).max().unwrap_or(1));
    ShardBlocks { mixer, feed_forward, experts }
}
