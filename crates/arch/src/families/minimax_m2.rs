//! MiniMax M2: experts chosen by sigmoid and a bias in every layer, norms over the whole width of queries and
//! of keys, and a part of each head rotated.

use super::names::{GGUF, HF_LAYER, LayerNames, TensorNames, hf as hf_names};
use super::{ConfigError, Family, GgufConfig, HfConfig};
use crate::config::{DecoderConfig, FeedForward, QkNorm, Routing};

pub(super) const FAMILY: Family = Family {
    model_type: "minimax_m2",
    aliases: &[],
    gguf_architectures: &["minimax-m2"],
    from_hf,
    from_gguf,
    hf_names: &NAMES,
    gguf_names: &GGUF,
};

static NAMES: TensorNames = hf_names(LayerNames {
    router: "block_sparse_moe.gate",
    router_bias: "block_sparse_moe.e_score_correction_bias",
    expert_gate: "block_sparse_moe.experts.{}.w1",
    expert_up: "block_sparse_moe.experts.{}.w3",
    expert_down: "block_sparse_moe.experts.{}.w2",
    ..HF_LAYER
});

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let mut config = hf.llama("minimax_m2")?;
    hf.only("scoring_func", "sigmoid")?;
    hf.only("qk_norm_type", "per_layer")?;
    hf.only("shared_intermediate_size", "0")?;
    for key in ["layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta"] {
        hf.only(key, "1.0")?;
    }
    if hf.flag("use_qk_norm")?.unwrap_or(true) {
        config.attentions_mut().for_each(|attention| attention.qk_norm = QkNorm::WholeWidth);
    }
    // Other types of attention are those of MiniMax M1.
    if let Some(other) = hf.sizes("attn_type_list")?.into_iter().flatten().find(|kind| *kind != 1) {
        return Err(ConfigError::invalid("attn_type_list", other, "1 everywhere"));
    }
    let is_biased = hf.flag("use_routing_bias")?.unwrap_or(true);
    let routing = Routing::sigmoid(hf.required_size("num_experts_per_tok")?, is_biased);
    let feed_forward = FeedForward::Experts {
        n_experts: hf.required_size("num_local_experts")?,
        width: hf.required_size("intermediate_size")?,
        routing,
        shared: None,
    };
    config.layers.iter_mut().for_each(|layer| layer.feed_forward = feed_forward);
    Ok(config)
}

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    let mut config =
        gguf.llama("minimax_m2")?.with_attention(|attention| attention.qk_norm = QkNorm::WholeWidth);
    let sigmoid = gguf.sigmoid_routing()?;
    for layer in &mut config.layers {
        if let FeedForward::Experts { routing, .. } = &mut layer.feed_forward {
            *routing = sigmoid;
        }
    }
    Ok(config)
}
