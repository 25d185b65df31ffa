//! Memory of one device: weights, then keys, values and recurrent states.

use crate::error::{PlanError, share};
use crate::machine::Machine;
use crate::model_shape::{LayerShape, ModelShape};
use crate::parallelism::Parallelism;

/// Bytes of a GiB.
const GIB: f64 = 1_073_741_824.0;

/// The memory of one device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryPlan {
    /// Bytes that weights, keys and values may use.
    pub usable_bytes: f64,
    /// Bytes of weights.
    pub weight_bytes: f64,
    /// Bytes that are left for keys, values and states.
    pub cache_bytes: f64,
    parallelism: Parallelism,
}

impl MemoryPlan {
    /// The memory of each of the devices that share a model. `memory_share` of it may be used.
    ///
    /// # Errors
    /// When the machine has no figure of its memory, or the weights leave no room for a sequence of
    /// `sequence_tokens`.
    pub fn new(
        machine: &Machine,
        model: &ModelShape,
        parallelism: Parallelism,
        memory_share: f64,
        sequence_tokens: u64,
    ) -> Result<Self, PlanError> {
        let usable_bytes = machine.capacity()? * share("the share of memory that may be used", memory_share)?;
        let weight_bytes = weight_bytes(model, parallelism);
        let cache_bytes = usable_bytes - weight_bytes;
        let plan = Self { usable_bytes, weight_bytes, cache_bytes, parallelism };
        let sequence = plan.sequence_bytes(model, sequence_tokens);
        if cache_bytes < sequence {
            return Err(PlanError::TooLarge {
                model: model.name.clone(),
                needed_gib: (weight_bytes + sequence) / GIB,
                on: format!("{} {}", machine.name, parallelism.name()).trim_end().to_owned(),
                usable_gib: usable_bytes / GIB,
            });
        }
        Ok(plan)
    }

    /// Bytes of a sequence of this many tokens on each of its devices.
    pub fn sequence_bytes(&self, model: &ModelShape, n_tokens: u64) -> f64 {
        let cache = model.cache_part_bytes(n_tokens, f64::from(self.parallelism.tensor));
        let states = model.state_bytes() / f64::from(self.parallelism.tensor);
        (cache + states) / f64::from(self.parallelism.pipeline)
    }

    /// Number of sequences of this many tokens that all devices hold together.
    pub fn n_sequences(&self, model: &ModelShape, n_tokens: u64) -> f64 {
        let bytes = self.sequence_bytes(model, n_tokens.max(1));
        if bytes <= 0.0 {
            return f64::INFINITY;
        }
        (self.cache_bytes / bytes).floor() * f64::from(self.parallelism.expert)
    }

    /// Number of tokens that all devices hold together, in sequences of `sequence_tokens`: layers with a
    /// sliding window keep only the last tokens of each.
    pub fn n_tokens(&self, model: &ModelShape, sequence_tokens: u64) -> f64 {
        let n_tokens = sequence_tokens.max(1);
        let bytes = self.sequence_bytes(model, n_tokens);
        if bytes <= 0.0 {
            return f64::INFINITY;
        }
        (self.cache_bytes / bytes * n_tokens as f64).floor() * f64::from(self.parallelism.expert)
    }
}

/// Bytes of weights on each device. Matrices that are not cut are small and counted as if they were.
fn weight_bytes(model: &ModelShape, parallelism: Parallelism) -> f64 {
    let n_sharing = f64::from(parallelism.tensor) * f64::from(parallelism.pipeline);
    let routed = |layer: &LayerShape| {
        layer
            .experts
            .as_ref()
            .map_or(0.0, |experts| layer.n_layers * experts.n_experts * experts.n_parameters())
    };
    let experts: f64 = model.layers.iter().map(routed).sum();
    let others = model.n_parameters() - experts;
    (others + experts / f64::from(parallelism.expert)) / n_sharing * model.weights.bits / 8.0
}
