//! The work of a model's forward pass, counted from its tensors. Does not know the speed of a machine.
//!
//! Matrix products count, attention's arithmetic does not: the count is a lower bound. Matrices whose codes
//! are integers are multiplied as bytes, others as floats of 16 or 32 bits (FP8 with its scales as 32).

use throng_core::scheduling::forward_work::{ForwardWork, LayerCache};
use throng_kernels::quant::{ComputePath, Format};

use crate::config::{DecoderConfig, FeedForward, LayerConfig};
use crate::kv_cache::{KvDtype, KvLayout, KvShape};
use crate::tensor_role::TensorRole;

/// A tensor as it is held in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldTensor {
    /// Role in the forward pass.
    pub role: TensorRole,
    /// Format in which the tensor is held.
    pub format: Format,
    /// Number of elements.
    pub n_elements: usize,
    /// Bytes in the held format.
    pub n_bytes: u64,
}

fn caches(config: &DecoderConfig, dtype: KvDtype) -> Vec<LayerCache> {
    let layout = KvLayout::new(config, dtype, 1);
    let of_layer = |(layer, shape): (&LayerConfig, &Option<KvShape>)| {
        Some(LayerCache {
            bytes_per_token: shape.as_ref()?.bytes_per_token().unwrap_or(0) as f64,
            window: layer.mixer.reach().map(|n_positions| n_positions as u64),
        })
    };
    config.layers.iter().zip(&layout.layers).filter_map(of_layer).collect()
}

/// The work of a model with these tensors.
pub fn forward_work(
    config: &DecoderConfig,
    tensors: impl Iterator<Item = HeldTensor>,
    kv_dtype: KvDtype,
) -> ForwardWork {
    let mut sum = ForwardWork { caches: caches(config, kv_dtype), ..ForwardWork::default() };
    for tensor in tensors {
        // Several tokens may share their experts, so at least those of one token are read.
        let (work, share) = match tensor.role {
            TensorRole::Product => (&mut sum.layers, 1.0),
            TensorRole::Expert => (&mut sum.layers, used_share(config)),
            TensorRole::Output => (&mut sum.output, 1.0),
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
    sum
}

/// The share of all experts that one token uses.
fn used_share(config: &DecoderConfig) -> f64 {
    let share = config.layers.iter().find_map(|layer| match layer.feed_forward {
        FeedForward::Experts { n_experts, routing, .. } => Some(routing.n_used as f64 / n_experts as f64),
        FeedForward::Dense { .. } | FeedForward::None => None,
    });
    share.unwrap_or(1.0)
}
