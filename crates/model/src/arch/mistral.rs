//! Mistral (arXiv:2310.06825): Llama with a sliding window in every layer. Its GGUF files say they are Llama.

use super::names::HF;
use super::{ConfigError, Family, HfConfig, llama};
use crate::config::DecoderConfig;

pub(super) const FAMILY: Family = Family {
    model_type: "mistral",
    aliases: &[],
    gguf_architectures: &[],
    from_hf,
    from_gguf: llama::from_gguf,
    hf_names: &HF,
};

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let mut config = hf.llama("mistral")?;
    hf.slide(&mut config, |_| true)?;
    Ok(config)
}
