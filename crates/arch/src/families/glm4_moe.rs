//! GLM 4.5 to 4.7 (arXiv:2508.06471): routed experts chosen by sigmoid and a bias, beside one that every
//! token uses; the first layers are dense, and half of each head is rotated. The layer that predicts a
//! further token is not part of the model.

use super::names::{GGUF_POST_ATTENTION_NORM, HF_LAYER, LayerNames, TensorNames, hf as hf_names};
use super::{ConfigError, Family, GgufConfig, HfConfig};
use crate::config::{DecoderConfig, FeedForward, QkNorm, Routing, SharedExpert};

pub(super) const FAMILY: Family = Family {
    model_type: "glm4_moe",
    aliases: &["glm4v_moe", "glm4v_moe_text"],
    gguf_architectures: &["glm4moe"],
    from_hf,
    from_gguf,
    hf_names: &NAMES,
    gguf_names: &GGUF_POST_ATTENTION_NORM,
};

static NAMES: TensorNames = hf_names(LayerNames {
    shared_gate: "mlp.shared_experts.gate_proj",
    shared_up: "mlp.shared_experts.up_proj",
    shared_down: "mlp.shared_experts.down_proj",
    ..HF_LAYER
});

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let mut config = hf.llama("glm4_moe")?;
    if hf.flag("use_qk_norm")?.unwrap_or(false) {
        config.attentions_mut().for_each(|attention| attention.qk_norm = QkNorm::PerHead);
    }
    // Experts are one group.
    hf.only("n_group", "1")?;
    hf.only("topk_group", "1")?;
    let routing = routing(hf)?;
    let width = hf.required_size("moe_intermediate_size")?;
    let n_shared = hf.size("n_shared_experts")?.unwrap_or(0);
    let feed_forward = FeedForward::Experts {
        n_experts: hf.required_size("n_routed_experts")?,
        width,
        routing,
        shared: shared(n_shared, width),
    };
    let n_dense = hf.size("first_k_dense_replace")?.unwrap_or(0);
    config.layers.iter_mut().skip(n_dense).for_each(|layer| layer.feed_forward = feed_forward);
    Ok(config)
}

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    let mut config = gguf.llama("glm4_moe")?;
    if gguf.has_tensor("blk.0.attn_q_norm.weight") {
        config.attentions_mut().for_each(|attention| attention.qk_norm = QkNorm::PerHead);
    }
    let n_layers =
        config.layers.len() - gguf.size("nextn_predict_layers")?.unwrap_or(0).min(config.layers.len());
    config.layers.truncate(n_layers);
    let n_shared = gguf.size("expert_shared_count")?.unwrap_or(0);
    let sigmoid = gguf.sigmoid_routing()?;
    for layer in &mut config.layers {
        if let FeedForward::Experts { width, routing, shared: of_layer, .. } = &mut layer.feed_forward {
            *routing = sigmoid;
            *of_layer = shared(n_shared, *width);
        }
    }
    Ok(config)
}

/// Routing by sigmoid and a bias that only chooses.
pub(super) fn routing(hf: &HfConfig) -> Result<Routing, ConfigError> {
    hf.only("scoring_func", "sigmoid")?;
    hf.only("topk_method", "noaux_tc")?;
    Ok(Routing {
        normalize: hf.flag("norm_topk_prob")?.unwrap_or(true),
        scale: hf.number("routed_scaling_factor")?.unwrap_or(1.0) as f32,
        ..Routing::sigmoid(hf.required_size("num_experts_per_tok")?, true)
    })
}

/// Several shared experts are computed as one network of their total width.
pub(super) fn shared(n_shared: usize, width: usize) -> Option<SharedExpert> {
    (n_shared > 0).then_some(SharedExpert {
        width: n_shared.saturating_mul(width),
        is_gated: false,
        has_norms: false,
    })
}
