//! A lower bound of the work of a forward pass, whatever computes it: multiplications, and bytes that are read from memory. Does
//! not know how fast a machine is.
//!
//! Matrix products count, attention's arithmetic does not: what is counted is a lower bound. Matrices whose codes are
//! integers are multiplied as bytes, others as floats of 16 or 32 bits (FP8 with its scales as 32).

use throng_kernels::quant::{ComputePath, Format};

use crate::config::{DecoderConfig, FeedForward, LayerConfig};
use crate::kv_cache::{KvDtype, KvLayout, KvShape};
use crate::tensor_role::TensorRole;

/// An amount of work.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Work {
    /// Multiplications and additions of bytes, two for each weight and token.
    pub int8_operations: f64,
    /// The same of 16-bit floats.
    pub bf16_operations: f64,
    /// The same of 32-bit floats.
    pub f32_operations: f64,
    /// Bytes of weights, keys and values that are read.
    pub bytes: f64,
}

/// Some steps taken together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Steps {
    /// Forward passes; each reads the weights once.
    pub n_steps: u64,
    /// Tokens that go through the layers.
    pub n_tokens: u64,
    /// Forward passes in which logits of any token are wanted.
    pub n_logit_steps: u64,
    /// Tokens whose logits are wanted.
    pub n_logits: u64,
}

/// A tensor as it is held in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldTensor {
    /// What the forward pass does with it.
    pub role: TensorRole,
    /// Its format.
    pub format: Format,
    /// Elements.
    pub n_elements: usize,
    /// Bytes in that format.
    pub n_bytes: u64,
}

/// The work of one model's forward pass.
#[derive(Debug, Clone, PartialEq)]
pub struct ForwardWork {
    /// Work of one token in one step, without logits.
    layers: Work,
    /// Work of the logits of one token in one step.
    output: Work,
    /// The keys and values that each layer with attention reads.
    caches: Vec<LayerCache>,
}

/// The keys and values that a layer reads.
#[derive(Debug, Clone, Copy, PartialEq)]
struct LayerCache {
    /// Bytes of one position.
    bytes_per_token: f64,
    /// How many positions a token sees.
    window: Option<usize>,
}

fn caches(config: &DecoderConfig, dtype: KvDtype) -> Vec<LayerCache> {
    let layout = KvLayout::new(config, dtype, 1);
    let of_layer = |(layer, shape): (&LayerConfig, &Option<KvShape>)| {
        Some(LayerCache {
            bytes_per_token: shape.as_ref()?.bytes_per_token().unwrap_or(0) as f64,
            window: layer.mixer.reach(),
        })
    };
    config.layers.iter().zip(&layout.layers).filter_map(of_layer).collect()
}

impl ForwardWork {
    /// The work of a model with these tensors.
    pub fn new(config: &DecoderConfig, tensors: impl Iterator<Item = HeldTensor>, kv_dtype: KvDtype) -> Self {
        let mut this =
            Self { layers: Work::default(), output: Work::default(), caches: caches(config, kv_dtype) };
        for tensor in tensors {
            // Several tokens may share their experts, so at least those of one token are read.
            let (work, share) = match tensor.role {
                TensorRole::Product => (&mut this.layers, 1.0),
                TensorRole::Expert => (&mut this.layers, used_share(config)),
                TensorRole::Output => (&mut this.output, 1.0),
                TensorRole::Lookup | TensorRole::Vector => continue,
            };
            let operations = 2.0 * share * tensor.n_elements as f64;
            match ComputePath::of(tensor.format) {
                ComputePath::Int8 { .. } => work.int8_operations += operations,
                path if path.needs_f32() => work.f32_operations += operations,
                ComputePath::Float(_) => work.bf16_operations += operations,
            }
            work.bytes += share * tensor.n_bytes as f64;
        }
        this
    }

    /// The work of some steps, without the keys and values that they read.
    pub fn of(&self, steps: Steps) -> Work {
        let sum = |of: fn(&Work) -> f64, n_layers: u64, n_output: u64| {
            of(&self.layers) * n_layers as f64 + of(&self.output) * n_output as f64
        };
        Work {
            int8_operations: sum(|work| work.int8_operations, steps.n_tokens, steps.n_logits),
            bf16_operations: sum(|work| work.bf16_operations, steps.n_tokens, steps.n_logits),
            f32_operations: sum(|work| work.f32_operations, steps.n_tokens, steps.n_logits),
            bytes: sum(|work| work.bytes, steps.n_steps, steps.n_logit_steps),
        }
    }

    /// Bytes of keys and values that a token at `position` (the first is 0) reads, its own included.
    pub fn kv_bytes(&self, position: u64) -> f64 {
        let read = |cache: &LayerCache| {
            let seen = cache.window.map_or(position + 1, |most| (position + 1).min(most as u64));
            seen as f64 * cache.bytes_per_token
        };
        self.caches.iter().map(read).sum()
    }

    /// Bytes of all weights that a step with logits reads.
    pub fn step_bytes(&self) -> f64 {
        self.layers.bytes + self.output.bytes
    }
}

/// The share of all experts that one token uses.
fn used_share(config: &DecoderConfig) -> f64 {
    let share = config.layers.iter().find_map(|layer| match layer.feed_forward {
        FeedForward::Experts { n_experts, routing, .. } => Some(routing.n_used as f64 / n_experts as f64),
        FeedForward::Dense { .. } | FeedForward::None => None,
    });
    share.unwrap_or(1.0)
}
