//! The model restricted to the part of one of several processes. Does not know how weights are read.

use std::collections::HashMap;
use std::sync::Arc;

use super::{LoadError, LoadedModel};
use crate::config::{Stage, StageError};
use crate::parallel::{ModelPart, OwnPart, PartError};
use crate::tensor_role::TensorRole;

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
    /// head behind the last one. A tied table counts as the head, and one that is only looked up as nothing.
    pub fn layer_bytes(&self) -> Vec<u64> {
        self.layer_bytes_of(|_| true)
    }

    /// [`Self::layer_bytes`] of tensors with some roles only.
    pub fn layer_bytes_of(&self, counts: impl Fn(TensorRole) -> bool) -> Vec<u64> {
        let roles = self.tensor_roles();
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
            if roles.get(name).is_some_and(|&role| !counts(role)) {
                return;
            }
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
