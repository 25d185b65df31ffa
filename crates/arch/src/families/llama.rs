//! Llama 1 to 3 (arXiv:2407.21783) and the many that share its shape, InternLM 3 among them. In GGUF also
//! Mistral and Mixtral.

use super::names::{GGUF, HF};
use super::{ConfigError, Family, GgufConfig, HfConfig};
use crate::config::{DecoderConfig, RopeStyle};

pub(super) const FAMILY: Family = Family {
    model_type: "llama",
    aliases: &["internlm3"],
    gguf_architectures: &["llama"],
    from_hf,
    from_gguf,
    hf_names: &HF,
    gguf_names: &GGUF,
};

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    hf.llama("llama")
}

pub(super) fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    // The converter permutes the rows of q and k so that neighbours turn together.
    Ok(gguf.llama("llama")?.with_attention(|attention| attention.rope_style = RopeStyle::Interleaved))
}
