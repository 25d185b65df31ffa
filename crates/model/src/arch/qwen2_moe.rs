//! Qwen 1.5 and 2 with experts (arXiv:2407.10671): routed experts beside one that every token uses.

use super::names::HF;
use super::{ConfigError, Family, GgufConfig, HfConfig, qwen2};
use crate::config::{DecoderConfig, FeedForward, Routing};

pub(super) const FAMILY: Family = Family {
    model_type: "qwen2_moe",
    aliases: &[],
    gguf_architectures: &["qwen2moe"],
    from_hf,
    from_gguf,
    hf_names: &HF,
};

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let mut config = hf.llama("qwen2_moe")?;
    qwen2::slide(hf, &mut config)?;
    let shared_width = hf.required_size("shared_expert_intermediate_size")?;
    place_experts(hf, &mut config, Some(shared_width))?;
    Ok(config)
}

/// Puts experts into the layers that have them: every `decoder_sparse_step`-th but those of `mlp_only_layers`.
pub(super) fn place_experts(
    hf: &HfConfig,
    config: &mut DecoderConfig,
    shared_width: Option<usize>,
) -> Result<(), ConfigError> {
    let n_experts = match hf.size("num_experts")? {
        Some(n_experts) => n_experts,
        None => hf.required_size("num_local_experts")?,
    };
    let routing = Routing {
        n_used: hf.required_size("num_experts_per_tok")?,
        normalize: hf.flag("norm_topk_prob")?.unwrap_or(false),
    };
    let width = hf.required_size("moe_intermediate_size")?;
    let step = hf.size("decoder_sparse_step")?.unwrap_or(1).max(1);
    let dense = hf.sizes("mlp_only_layers")?.unwrap_or_default();
    for (layer_idx, layer) in config.layers.iter_mut().enumerate() {
        if (layer_idx + 1).is_multiple_of(step) && !dense.contains(&layer_idx) {
            layer.feed_forward = FeedForward::Experts { n_experts, width, routing, shared_width };
        }
    }
    Ok(())
}

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    let mut config = gguf.llama("qwen2_moe")?;
    let shared = gguf.size("expert_shared_feed_forward_length")?;
    for layer in &mut config.layers {
        if let FeedForward::Experts { routing, shared_width, .. } = &mut layer.feed_forward {
            // The file does not say either; llama.cpp fixes both for this family.
            routing.normalize = false;
            *shared_width = match shared {
                Some(width) => Some(width),
                None => Some(gguf.required_size("feed_forward_length")?),
            };
        }
    }
    Ok(config)
}
