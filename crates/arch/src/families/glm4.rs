//! GLM 4: Llama with fused gate and up, half of each head rotated in pairs, and biases on queries, keys and
//! values. The models of April 2025 (`glm4`) have norms after mixer and feed-forward besides, those of 2024
//! (`glm`, arXiv:2406.12793) do not.

use super::names::{GGUF, HF_LAYER, LayerNames, TensorNames, hf as hf_names};
use super::{ConfigError, Family, GgufConfig, HfConfig, without_gguf};
use crate::config::{DecoderConfig, NormPlacement, RopeStyle};

pub(super) const FAMILY: Family = Family {
    model_type: "glm4",
    aliases: &["glm4v", "glm4v_text"],
    gguf_architectures: &["glm4"],
    from_hf: |hf| {
        let config = from_hf(hf, "glm4")?;
        Ok(DecoderConfig { norms: NormPlacement::PreAndPost, ..config })
    },
    from_gguf,
    hf_names: &NAMES,
    gguf_names: &GGUF,
};

pub(super) const FAMILY_2024: Family = Family {
    model_type: "glm",
    aliases: &[],
    gguf_architectures: &[],
    from_hf: |hf| from_hf(hf, "glm"),
    from_gguf: without_gguf,
    hf_names: &NAMES,
    gguf_names: &GGUF,
};

static NAMES: TensorNames = hf_names(LayerNames {
    post_attention_norm: "post_self_attn_layernorm",
    post_feed_forward_norm: "post_mlp_layernorm",
    ..HF_LAYER
});

/// Rotated share of a head if the file has none.
const ROTATED_SHARE: f64 = 0.5;

fn from_hf(hf: &HfConfig, family: &'static str) -> Result<DecoderConfig, ConfigError> {
    let hf = &hf.with_rotated_share(ROTATED_SHARE);
    let config = hf.llama(family)?.with_attention(|attention| attention.rope_style = RopeStyle::Interleaved);
    Ok(config)
}

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    let config =
        gguf.llama("glm4")?.with_attention(|attention| attention.rope_style = RopeStyle::Interleaved);
    Ok(DecoderConfig { norms: NormPlacement::PreAndPost, ..config })
}
