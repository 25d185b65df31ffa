//! A decoder in stages, one after the other: the layers of each stage, and whether it has the embedding and
//! the head. Does not know where the stages run.

use std::ops::Range;

use super::DecoderConfig;

/// A part of a decoder. All parts of a pipeline, run one after the other, compute the decoder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// Whether it begins with the tokens, which it embeds; else with the residual stream of the stage before.
    pub embeds: bool,
    /// Range of the stage's layers in the whole decoder.
    pub layers: Range<usize>,
    /// Whether it ends with logits; else with its residual stream.
    pub has_head: bool,
}

/// Reason why a decoder cannot have this stage.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StageError {
    /// The range is not one of layers.
    #[error("layers {} to {} of a model with {n_layers}", layers.start, layers.end)]
    Layers {
        /// Range of layers.
        layers: Range<usize>,
        /// Number of the decoder's layers.
        n_layers: usize,
    },
    /// A pipeline has at least one stage and at most one for each layer.
    #[error("{n_stages} stages of a model with {n_layers} layers")]
    Stages {
        /// Number of stages.
        n_stages: usize,
        /// Number of the decoder's layers.
        n_layers: usize,
    },
    /// Layers read embeddings of the tokens, which only a stage with all layers and the embedding has.
    #[error("the layers of {family} read embeddings of the tokens, so they cannot be divided")]
    EmbeddingsForLayers {
        /// The family of the decoder.
        family: &'static str,
    },
    /// Keys of indexers are in the cache behind those of all layers.
    #[error("the layers of {family} choose positions, so they cannot be divided")]
    ChosenPositions {
        /// The family of the decoder.
        family: &'static str,
    },
    /// A layer reads the keys and values of a layer in an earlier stage.
    #[error("layer {layer_idx} reads the keys of layer {kv_layer_idx}, which is in an earlier stage")]
    SharedKeys {
        /// Layer that reads the positions.
        layer_idx: usize,
        /// Layer that has the keys and values.
        kv_layer_idx: usize,
    },
}

impl Stage {
    /// A stage with the whole decoder.
    pub fn whole(config: &DecoderConfig) -> Self {
        Self { embeds: true, layers: 0..config.layers.len(), has_head: true }
    }

    /// The stages of a pipeline of `n_stages`, with numbers of layers that differ by at most one.
    ///
    /// # Errors
    /// When there are more stages than layers, or none, or the decoder cannot be divided there.
    pub fn split(config: &DecoderConfig, n_stages: usize) -> Result<Vec<Self>, StageError> {
        let n_layers = config.layers.len();
        if n_stages == 0 || n_stages > n_layers {
            return Err(StageError::Stages { n_stages, n_layers });
        }
        let first = |stage_idx: usize| stage_idx * n_layers / n_stages;
        let stage = |stage_idx: usize| {
            let layers = first(stage_idx)..first(stage_idx + 1);
            let stage = Self { embeds: stage_idx == 0, layers, has_head: stage_idx + 1 == n_stages };
            stage.check(config).map(|()| stage)
        };
        (0..n_stages).map(stage).collect()
    }

    /// The stages of a pipeline of `n_stages`, as equal in weight as whole layers allow. `weights` are those
    /// of the embedding, of each layer, and of the head.
    ///
    /// # Errors
    /// Errors of [`Self::split`].
    pub fn split_by(
        config: &DecoderConfig,
        weights: &[u64],
        n_stages: usize,
    ) -> Result<Vec<Self>, StageError> {
        let n_layers = config.layers.len();
        if n_stages == 0 || n_stages > n_layers {
            return Err(StageError::Stages { n_stages, n_layers });
        }
        // Weight up to the end of each layer, the head with the last one.
        let mut sum = weights.first().copied().unwrap_or(0);
        let mut up_to: Vec<u64> = Vec::with_capacity(n_layers);
        for layer_idx in 0..n_layers {
            sum += weights.get(layer_idx + 1).copied().unwrap_or(0);
            up_to.push(sum);
        }
        let all = sum + weights.get(n_layers + 1).copied().unwrap_or(0);
        let mut bounds = vec![0];
        for stage_idx in 1..n_stages {
            let ideal = all / n_stages as u64 * stage_idx as u64;
            // At least one layer for this stage, and for each one after it.
            let (least, most) = (bounds[stage_idx - 1] + 1, n_layers - (n_stages - stage_idx));
            let distance = |end: &usize| up_to[end - 1].abs_diff(ideal);
            bounds.push((least..=most).min_by_key(distance).unwrap_or(least));
        }
        bounds.push(n_layers);
        let stage = |stage_idx: usize| {
            let layers = bounds[stage_idx]..bounds[stage_idx + 1];
            let stage = Self { embeds: stage_idx == 0, layers, has_head: stage_idx + 1 == n_stages };
            stage.check(config).map(|()| stage)
        };
        (0..n_stages).map(stage).collect()
    }

    /// The decoder in two stages, of which the second begins with layer `first_layer`.
    ///
    /// # Errors
    /// When a stage has no layer, or the decoder cannot be divided there.
    pub fn halves(config: &DecoderConfig, first_layer: usize) -> Result<[Self; 2], StageError> {
        let n_layers = config.layers.len();
        if first_layer == 0 || first_layer >= n_layers {
            return Err(StageError::Layers { layers: first_layer..n_layers, n_layers });
        }
        let first = Self { embeds: true, layers: 0..first_layer, has_head: false };
        let second = Self { embeds: false, layers: first_layer..n_layers, has_head: true };
        first.check(config)?;
        second.check(config)?;
        Ok([first, second])
    }

    /// Checks that the decoder can have this stage.
    ///
    /// # Errors
    /// When the decoder has another number of layers.
    pub fn check(&self, config: &DecoderConfig) -> Result<(), StageError> {
        let (layers, n_layers) = (self.layers.clone(), config.layers.len());
        if layers.start > layers.end || layers.end > n_layers {
            return Err(StageError::Layers { layers, n_layers });
        }
        let has_all = self.embeds && layers == (0..n_layers);
        if config.per_layer_width.is_some() && !has_all && !layers.is_empty() {
            return Err(StageError::EmbeddingsForLayers { family: config.family });
        }
        if config.index_shapes().next().is_some() && !has_all {
            return Err(StageError::ChosenPositions { family: config.family });
        }
        for layer_idx in layers.clone() {
            let attention = config.layers[layer_idx].attention();
            let kv_layer_idx = attention.and_then(|attention| attention.kv_layer_idx);
            if let Some(kv_layer_idx) = kv_layer_idx.filter(|idx| !layers.contains(idx)) {
                return Err(StageError::SharedKeys { layer_idx, kv_layer_idx });
            }
        }
        Ok(())
    }
}
