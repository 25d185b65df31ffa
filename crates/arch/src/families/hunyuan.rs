//! Hunyuan of 2025, dense and with experts (arXiv:2506.18407 and its model cards): Llama with norms of heads
//! after rotation, a base of rotary frequencies that is stretched by `alpha`, and experts chosen by
//! probabilities beside one that every token uses. Source: the modelling files of `hunyuan_v1_dense` and
//! `hunyuan_v1_moe` in transformers.

use serde_json::Value;

use super::names::{GGUF, HF_LAYER, LayerNames, TensorNames, hf as hf_names};
use super::{ConfigError, Family, GgufConfig, HfConfig};
use crate::config::{DecoderConfig, FeedForward, QkNorm, Routing, SharedExpert};

pub(super) const FAMILY: Family = Family {
    model_type: "hunyuan_v1_dense",
    aliases: &[],
    gguf_architectures: &["hunyuan-dense"],
    from_hf: |hf| from_hf(hf, "hunyuan_v1_dense"),
    from_gguf: |gguf| Ok(finish(gguf.llama("hunyuan_v1_dense")?)),
    hf_names: &NAMES,
    gguf_names: &GGUF,
};

pub(super) const FAMILY_MOE: Family = Family {
    model_type: "hunyuan_v1_moe",
    // Of files from before transformers had the family.
    aliases: &["hunyuan"],
    gguf_architectures: &["hunyuan-moe"],
    from_hf: moe_from_hf,
    from_gguf: moe_from_gguf,
    ..FAMILY
};

static NAMES: TensorNames = hf_names(LayerNames {
    query_norm: "self_attn.query_layernorm",
    key_norm: "self_attn.key_layernorm",
    router: "mlp.gate.wg",
    shared_gate: "mlp.shared_mlp.gate_proj",
    shared_up: "mlp.shared_mlp.up_proj",
    shared_down: "mlp.shared_mlp.down_proj",
    ..HF_LAYER
});

fn from_hf(hf: &HfConfig, family: &'static str) -> Result<DecoderConfig, ConfigError> {
    for key in ["use_cla", "use_mla"] {
        hf.only(key, "false")?;
    }
    for key in ["use_qk_norm", "use_rotary_pos_emb"] {
        hf.only(key, "true")?;
    }
    let hf = match hf.size("attention_head_dim")? {
        Some(head_dim) => &hf.with_size("head_dim", head_dim),
        None => hf,
    };
    hf.llama(family).map(finish)
}

fn moe_from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let mut config = from_hf(hf, "hunyuan_v1_moe")?;
    hf.only("use_mixed_mlp_moe", "true")?;
    hf.only("norm_topk_prob", "true")?;
    hf.only("moe_layer_num_skipped", "0")?;
    for key in ["group_limited_greedy", "moe_drop_tokens"] {
        hf.only(key, "false")?;
    }
    let width = hf.required_size("intermediate_size")?;
    let expert_width = common_size(hf, "moe_intermediate_size")?.unwrap_or(width);
    let n_shared = common_size(hf, "num_shared_expert")?.unwrap_or(1);
    let missing = |key: &str| ConfigError::Missing(key.to_owned());
    let n_experts = common_size(hf, "num_experts")?.ok_or_else(|| missing("num_experts"))?;
    let n_used = match common_size(hf, "moe_topk")? {
        Some(n_used) => n_used,
        None => hf.required_size("num_experts_per_tok")?,
    };
    let feed_forward = FeedForward::Experts {
        n_experts,
        width: expert_width,
        routing: Routing::softmax(n_used, true),
        shared: shared(expert_width.saturating_mul(n_shared)),
    };
    config.layers.iter_mut().for_each(|layer| layer.feed_forward = feed_forward);
    Ok(config)
}

/// A size that is the same in all layers, for which some files have a list.
fn common_size(hf: &HfConfig, key: &str) -> Result<Option<usize>, ConfigError> {
    if !hf.get(key).is_some_and(Value::is_array) {
        return hf.size(key);
    }
    let sizes = hf.sizes(key)?.unwrap_or_default();
    match sizes.as_slice() {
        [first, others @ ..] if others.iter().all(|size| size == first) => Ok(Some(*first)),
        _ => Err(ConfigError::invalid(key, format!("{sizes:?}"), "one size for all layers")),
    }
}

fn moe_from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    let mut config = finish(gguf.llama("hunyuan_v1_moe")?);
    for layer in &mut config.layers {
        if let FeedForward::Experts { width, shared: of_layer, .. } = &mut layer.feed_forward {
            let shared_width = gguf.size("expert_shared_feed_forward_length")?;
            *of_layer = shared(shared_width.unwrap_or(*width));
        }
    }
    Ok(config)
}

fn shared(width: usize) -> Option<SharedExpert> {
    Some(SharedExpert { width, is_gated: false, has_norms: false })
}

fn finish(config: DecoderConfig) -> DecoderConfig {
    config.with_attention(|attention| attention.qk_norm = QkNorm::PerHeadAfterRope)
}
