//! Qwen 3 with experts (arXiv:2505.09388).

use super::names::{GGUF, HF};
use super::{ConfigError, Family, GgufConfig, HfConfig, qwen2, qwen2_moe};
use crate::config::{DecoderConfig, QkNorm};

pub(super) const FAMILY: Family = Family {
    model_type: "qwen3_moe",
    aliases: &[],
    gguf_architectures: &["qwen3moe"],
    from_hf,
    from_gguf,
    hf_names: &HF,
    gguf_names: &GGUF,
};

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let mut config = hf.llama("qwen3_moe")?.with_attention(|attention| attention.qk_norm = QkNorm::PerHead);
    qwen2::slide(hf, &mut config)?;
    qwen2_moe::place_experts(hf, &mut config, None)?;
    Ok(config)
}

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    Ok(gguf.llama("qwen3_moe")?.with_attention(|attention| attention.qk_norm = QkNorm::PerHead))
}
