//! ERNIE 4.5 with experts (Baidu 2025): experts chosen by probabilities and a bias that affects only the
//! choice, beside shared experts; the first layers are dense. Source: the modelling file of `ernie4_5_moe` in
//! transformers.

use super::names::{GGUF, HF_LAYER, LayerNames, TensorNames, hf as hf_names};
use super::{ConfigError, Family, GgufConfig, HfConfig, ernie4_5, glm4_moe};
use crate::config::{DecoderConfig, FeedForward, Routing};

pub(super) const FAMILY: Family = Family {
    model_type: "ernie4_5_moe",
    aliases: &[],
    gguf_architectures: &["ernie4_5-moe"],
    from_hf,
    from_gguf,
    hf_names: &NAMES,
    gguf_names: &GGUF,
};

static NAMES: TensorNames = hf_names(LayerNames {
    router_bias: "mlp.moe_statics.e_score_correction_bias",
    shared_gate: "mlp.shared_experts.gate_proj",
    shared_up: "mlp.shared_experts.up_proj",
    shared_down: "mlp.shared_experts.down_proj",
    ..HF_LAYER
});

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let hf = &hf.with_defaults(&[("rope_theta", 500_000)]);
    let mut config = ernie4_5::in_pairs(hf.llama("ernie4_5_moe")?);
    config.tied_embeddings = hf.flag("tie_word_embeddings")?.unwrap_or(true);
    // Biases are read where the file has them, and probabilities never sum to less than the least divisor.
    hf.get("use_bias");
    hf.number("moe_norm_min")?;
    hf.only("moe_gate", "topk")?;
    hf.only("moe_use_aux_free", "true")?;
    let width = hf.required_size("moe_intermediate_size")?;
    let either = |key: &str, other: &str| match hf.size(key)? {
        Some(size) => Ok(size),
        None => hf.required_size(other),
    };
    let feed_forward = FeedForward::Experts {
        n_experts: either("moe_num_experts", "num_experts")?,
        width,
        routing: routing(either("moe_k", "num_experts_per_tok")?),
        shared: glm4_moe::shared(hf.size("moe_num_shared_experts")?.unwrap_or(2), width),
    };
    let first = hf.size("moe_layer_start_index")?.unwrap_or(1);
    // -1 stands for the last layer.
    let last = hf.number("moe_layer_end_index")?.filter(|last| *last >= 0.0).unwrap_or(f64::INFINITY);
    let interval = hf.size("moe_layer_interval")?.unwrap_or(1).max(1);
    for (layer_idx, layer) in config.layers.iter_mut().enumerate() {
        if layer_idx >= first && layer_idx as f64 <= last && (layer_idx + 1).is_multiple_of(interval) {
            layer.feed_forward = feed_forward;
        }
    }
    Ok(config)
}

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    let mut config = ernie4_5::in_pairs(gguf.llama("ernie4_5_moe")?);
    let n_shared = gguf.size("expert_shared_count")?.unwrap_or(0);
    let n_used = gguf.size("expert_used_count")?.unwrap_or(0);
    for layer in &mut config.layers {
        if let FeedForward::Experts { width, routing: of_layer, shared, .. } = &mut layer.feed_forward {
            *of_layer = routing(n_used);
            *shared = glm4_moe::shared(n_shared, *width);
        }
    }
    Ok(config)
}

fn routing(n_used: usize) -> Routing {
    Routing { is_biased: true, ..Routing::softmax(n_used, true) }
}
