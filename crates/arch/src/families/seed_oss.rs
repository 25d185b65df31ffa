//! Seed-OSS: Llama with biases on queries, keys and values.

use super::names::{GGUF_POST_ATTENTION_NORM, HF};
use super::{ConfigError, Family, GgufConfig, HfConfig};
use crate::config::DecoderConfig;

pub(super) const FAMILY: Family = Family {
    model_type: "seed_oss",
    aliases: &[],
    gguf_architectures: &["seed_oss"],
    from_hf,
    from_gguf,
    hf_names: &HF,
    gguf_names: &GGUF_POST_ATTENTION_NORM,
};

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    hf.llama("seed_oss")
}

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    gguf.llama("seed_oss")
}
