//! Qwen 3 with experts (arXiv:2505.09388), and the text part of Qwen3-VL with experts, whose files have all
//! experts of a layer in one tensor.

use super::names::{ExpertsLayout, GGUF, HF, HF_LAYER, LayerNames, TensorNames, hf as hf_names};
use super::{ConfigError, Family, GgufConfig, HfConfig, qwen2, qwen2_moe};
use crate::config::{DecoderConfig, FeedForward, QkNorm};

pub(super) const FAMILY: Family = Family {
    model_type: "qwen3_moe",
    aliases: &[],
    gguf_architectures: &["qwen3moe"],
    from_hf,
    from_gguf,
    hf_names: &HF,
    gguf_names: &GGUF,
};

pub(super) const FAMILY_VL: Family = Family {
    model_type: "qwen3_vl_moe",
    aliases: &["qwen3_vl_moe_text"],
    gguf_architectures: &["qwen3vlmoe"],
    from_hf: |hf| {
        let mut config = from_hf(hf)?;
        for layer in &mut config.layers {
            // Weights always sum to 1, whatever the file says.
            if let FeedForward::Experts { routing, .. } = &mut layer.feed_forward {
                routing.normalize = true;
            }
        }
        Ok(DecoderConfig { family: "qwen3_vl_moe", ..config })
    },
    hf_names: &NAMES_VL,
    ..FAMILY
};

static NAMES_VL: TensorNames = hf_names(LayerNames {
    experts_gate_up: "mlp.experts.gate_up_proj",
    experts_down: "mlp.experts.down_proj",
    experts_layout: ExpertsLayout { is_transposed: true, is_interleaved: false },
    ..HF_LAYER
});

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let mut config = hf.llama("qwen3_moe")?.with_attention(|attention| attention.qk_norm = QkNorm::PerHead);
    qwen2::slide(hf, &mut config)?;
    qwen2_moe::place_experts(hf, &mut config, None)?;
    Ok(config)
}

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    Ok(gguf.llama("qwen3_moe")?.with_attention(|attention| attention.qk_norm = QkNorm::PerHead))
}
