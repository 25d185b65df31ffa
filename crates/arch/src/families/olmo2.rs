//! OLMo 2 (arXiv:2501.00656): norms after each block instead of before, and over the whole width of queries
//! and of keys.

use super::names::{GGUF, HF_GEMMA_LAYER, TensorNames, hf};
use super::{ConfigError, Family, GgufConfig, HfConfig};
use crate::config::{DecoderConfig, NormPlacement, QkNorm, RopeTable};

pub(super) const FAMILY: Family = Family {
    model_type: "olmo2",
    aliases: &[],
    gguf_architectures: &["olmo2"],
    from_hf,
    from_gguf,
    hf_names: &NAMES,
    gguf_names: &GGUF,
};

/// The norms after a block have the names of Gemma's.
pub(super) static NAMES: TensorNames = hf(HF_GEMMA_LAYER);

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    hf.llama("olmo2").map(finish)
}

/// A GGUF file with a window is one of OLMo 3, which has no architecture name of its own in GGUF.
pub(super) fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    let Some(window) = gguf.size("attention.sliding_window")?.filter(|window| *window > 0) else {
        return gguf.llama("olmo2").map(finish);
    };
    let mut config = finish(gguf.llama("olmo3")?);
    config.set_windows(|layer_idx| slides(layer_idx).then_some(window));
    let theta = gguf.number("rope.freq_base")?.unwrap_or(10_000.0);
    let local = HfConfig::plain_rope(theta, gguf.head_dim()?)?;
    Ok(with_local_rope(config, local))
}

pub(super) fn finish(config: DecoderConfig) -> DecoderConfig {
    let config = config.with_attention(|attention| attention.qk_norm = QkNorm::WholeWidth);
    DecoderConfig { norms: NormPlacement::Post, ..config }
}

/// Interval of the layers of OLMo 3 that attend to all positions, unless the file says otherwise.
const FULL_INTERVAL: usize = 4;

/// Whether a layer of OLMo 3 has a window.
pub(super) fn slides(layer_idx: usize) -> bool {
    !(layer_idx + 1).is_multiple_of(FULL_INTERVAL)
}

/// Layers with a window use the second, local rotary embedding.
pub(super) fn with_local_rope(mut config: DecoderConfig, local: RopeTable) -> DecoderConfig {
    config.ropes.push(local);
    config.with_attention(|attention| {
        attention.rope_idx = Some(usize::from(attention.sliding_window.is_some()));
    })
}
