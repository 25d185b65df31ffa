//! Qwen 2 and 2.5 (arXiv:2407.10671): Llama with biases on queries, keys and values. Also the text part of
//! Qwen2-VL and Qwen2.5-VL: the three parts of their rotary embedding have the same position in text.

use super::names::{GGUF, HF};
use super::{ConfigError, Family, GgufConfig, HfConfig};
use crate::config::DecoderConfig;

pub(super) const FAMILY: Family = Family {
    model_type: "qwen2",
    aliases: &["qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"],
    gguf_architectures: &["qwen2", "qwen2vl"],
    from_hf,
    from_gguf,
    hf_names: &HF,
    gguf_names: &GGUF,
};

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let mut config = hf.llama("qwen2")?;
    slide(hf, &mut config)?;
    Ok(config)
}

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    gguf.llama("qwen2")
}

/// Qwen's sliding windows are off unless the file enables them, and then apply from layer `max_window_layers`
/// on.
pub(super) fn slide(hf: &HfConfig, config: &mut DecoderConfig) -> Result<(), ConfigError> {
    if !hf.flag("use_sliding_window")?.unwrap_or(false) {
        hf.size("sliding_window")?;
        return Ok(());
    }
    let first = hf.size("max_window_layers")?.unwrap_or(28);
    hf.slide(config, |layer_idx| layer_idx >= first)
}
