//! Qwen 3 (arXiv:2505.09388): Llama with a norm on every head of queries and keys. Also the text part of
//! Qwen3-VL: the three parts of its rotary embedding have the same position in text.

use super::names::{GGUF, HF};
use super::{ConfigError, Family, GgufConfig, HfConfig, qwen2};
use crate::config::{DecoderConfig, QkNorm};

pub(super) const FAMILY: Family = Family {
    model_type: "qwen3",
    aliases: &["qwen3_vl", "qwen3_vl_text"],
    gguf_architectures: &["qwen3", "qwen3vl"],
    from_hf,
    from_gguf,
    hf_names: &HF,
    gguf_names: &GGUF,
};

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let mut config = hf.llama("qwen3")?.with_attention(|attention| attention.qk_norm = QkNorm::PerHead);
    qwen2::slide(hf, &mut config)?;
    Ok(config)
}

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    Ok(gguf.llama("qwen3")?.with_attention(|attention| attention.qk_norm = QkNorm::PerHead))
}
