//! Granite 3 (dense): Llama with a multiplier on embeddings, residuals, attention scores and logits.

use super::names::{GGUF, HF};
use super::{ConfigError, Family, GgufConfig, HfConfig};
use crate::config::{DecoderConfig, RopeStyle};

pub(super) const FAMILY: Family = Family {
    model_type: "granite",
    aliases: &[],
    gguf_architectures: &["granite"],
    from_hf,
    from_gguf,
    hf_names: &HF,
    gguf_names: &GGUF,
};

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    with_multipliers(hf, "granite")
}

/// A Llama with Granite's multipliers.
pub(super) fn with_multipliers(hf: &HfConfig, family: &'static str) -> Result<DecoderConfig, ConfigError> {
    let factor = |key| hf.number(key).map(|factor| factor.unwrap_or(1.0));
    let scale = factor("attention_multiplier")? as f32;
    Ok(DecoderConfig {
        embedding_scale: factor("embedding_multiplier")? as f32,
        residual_scale: factor("residual_multiplier")? as f32,
        logits_scale: (1.0 / factor("logits_scaling")?) as f32,
        ..hf.llama(family)?.with_attention(|attention| attention.scale = scale)
    })
}

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    with_gguf_multipliers(gguf, "granite")
}

/// A Llama with Granite's multipliers, of a GGUF file.
pub(super) fn with_gguf_multipliers(
    gguf: &GgufConfig<'_>,
    family: &'static str,
) -> Result<DecoderConfig, ConfigError> {
    // 0 means that there is none.
    let factor = |key| gguf.number(key).map(|factor| factor.filter(|factor| *factor != 0.0));
    let scale = factor("attention.scale")?.map(|scale| scale as f32);
    let config = gguf.llama(family)?.with_attention(|attention| {
        attention.rope_style = RopeStyle::Interleaved;
        attention.scale = scale.unwrap_or(attention.scale);
    });
    Ok(DecoderConfig {
        embedding_scale: factor("embedding_scale")?.unwrap_or(1.0) as f32,
        residual_scale: factor("residual_scale")?.unwrap_or(1.0) as f32,
        logits_scale: (1.0 / factor("logit_scale")?.unwrap_or(1.0)) as f32,
        ..config
    })
}
