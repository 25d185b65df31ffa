//! Qwen 1.5 and 2 with experts (arXiv:2407.10671): routed experts beside one that every token uses.

use super::names::{GGUF, HF};
use super::{ConfigError, Family, GgufConfig, HfConfig, qwen2};
use crate::config::{DecoderConfig, FeedForward, Routing, SharedExpert};

pub(super) const FAMILY: Family = Family {
    model_type: "qwen2_moe",
    aliases: &[],
    gguf_architectures: &["qwen2moe"],
    from_hf,
    from_gguf,
    hf_names: &HF,
    gguf_names: &GGUF,
};

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let mut config = hf.llama("qwen2_moe")?;
    qwen2::slide(hf, &mut config)?;
    let width = hf.required_size("shared_expert_intermediate_size")?;
    place_experts(hf, &mut config, Some(SharedExpert { width, is_gated: true, has_norms: false }))?;
    Ok(config)
}

/// Puts experts into the layers that have them: every `decoder_sparse_step`-th but those of
/// `mlp_only_layers`.
pub(super) fn place_experts(
    hf: &HfConfig,
    config: &mut DecoderConfig,
    shared: Option<SharedExpert>,
) -> Result<(), ConfigError> {
    let n_experts = match hf.size("num_experts")? {
        Some(n_experts) => n_experts,
        None => hf.required_size("num_local_experts")?,
    };
    let normalize = hf.flag("norm_topk_prob")?.unwrap_or(false);
    let routing = Routing::softmax(hf.required_size("num_experts_per_tok")?, normalize);
    let width = hf.required_size("moe_intermediate_size")?;
    let step = hf.size("decoder_sparse_step")?.unwrap_or(1).max(1);
    let dense = hf.sizes("mlp_only_layers")?.unwrap_or_default();
    for (layer_idx, layer) in config.layers.iter_mut().enumerate() {
        if (layer_idx + 1).is_multiple_of(step) && !dense.contains(&layer_idx) {
            layer.feed_forward = FeedForward::Experts { n_experts, width, routing, shared };
        }
    }
    Ok(())
}

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    let mut config = gguf.llama("qwen2_moe")?;
    let shared_width = match gguf.size("expert_shared_feed_forward_length")? {
        Some(width) => width,
        None => gguf.required_size("feed_forward_length")?,
    };
    for layer in &mut config.layers {
        if let FeedForward::Experts { routing, shared, .. } = &mut layer.feed_forward {
            // The file does not say either; llama.cpp fixes both for this family.
            routing.normalize = false;
            *shared = Some(SharedExpert { width: shared_width, is_gated: true, has_norms: false });
        }
    }
    Ok(config)
}
