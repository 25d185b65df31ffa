//! The part of a model on one of several processes. Does not know how its weights are read.

use serde::{Deserialize, Serialize};

use super::cuts::divided_by_columns;
use crate::arch::Architecture;
use crate::config::{DecoderConfig, ShardBlocks, ShardError, Stage, StageError};
use crate::decoder::weights::{encoded_name, find_byte_tensor, find_tensor};
use crate::quantization::QuantizePlan;
use throng_checkpoint::TensorSource;
use throng_kernels::quant::Format;

/// The part of a model that a process has: of each layer of a stage, the share of one of several ranks.
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
    /// The whole model.
    pub const WHOLE: Self = Self { rank: 0, n_ranks: 1, stage_idx: 0, n_stages: 1 };
}

/// Reason why a model cannot be divided into such a part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    /// Layers that cannot be divided.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// The model cannot have such stages.
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
