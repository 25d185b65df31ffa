//! ERNIE 4.5 without experts (Baidu 2025): Llama whose heads are rotated in pairs of neighbours.

use super::names::{GGUF, HF};
use super::{ConfigError, Family, GgufConfig, HfConfig};
use crate::config::{DecoderConfig, RopeStyle};

pub(super) const FAMILY: Family = Family {
    model_type: "ernie4_5",
    aliases: &[],
    gguf_architectures: &["ernie4_5"],
    from_hf,
    from_gguf,
    hf_names: &HF,
    gguf_names: &GGUF,
};

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let mut config = hf.llama("ernie4_5")?;
    config.tied_embeddings = hf.flag("tie_word_embeddings")?.unwrap_or(true);
    // Biases are read where the file has them.
    hf.get("use_bias");
    Ok(in_pairs(config))
}

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    Ok(in_pairs(gguf.llama("ernie4_5")?))
}

/// Heads that are rotated in pairs of neighbours.
pub(super) fn in_pairs(config: DecoderConfig) -> DecoderConfig {
    config.with_attention(|attention| attention.rope_style = RopeStyle::Interleaved)
}
