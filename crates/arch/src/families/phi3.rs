//! Phi 3 and 3.5 (arXiv:2404.14219): Llama with fused projections, LongRoPE and, in some sizes, a sliding
//! window.

use super::names::{GGUF, HF};
use super::{ConfigError, Family, GgufConfig, HfConfig};
use crate::config::DecoderConfig;

pub(super) const FAMILY: Family = Family {
    model_type: "phi3",
    aliases: &[],
    gguf_architectures: &["phi3"],
    from_hf,
    from_gguf,
    hf_names: &HF,
    gguf_names: &GGUF,
};

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let mut config = hf.llama("phi3")?;
    hf.slide(&mut config, |_| true)?;
    Ok(config)
}

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    let mut config = gguf.llama("phi3")?;
    if let Some(window) = gguf.size("attention.sliding_window")?.filter(|window| *window > 0) {
        config.set_windows(|_| Some(window));
    }
    Ok(config)
}
