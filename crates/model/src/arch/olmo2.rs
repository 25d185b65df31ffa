//! OLMo 2 (arXiv:2501.00656): norms after each block instead of before, and over the whole width of queries and of keys.

use super::names::{HF_GEMMA_LAYER, TensorNames, hf};
use super::{ConfigError, Family, GgufConfig, HfConfig};
use crate::config::{DecoderConfig, NormPlacement, QkNorm};

pub(super) const FAMILY: Family = Family {
    model_type: "olmo2",
    aliases: &[],
    gguf_architecture: Some("olmo2"),
    from_hf,
    from_gguf,
    hf_names: &NAMES,
};

/// The norms after a block have the names of Gemma's.
static NAMES: TensorNames = hf(HF_GEMMA_LAYER);

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    hf.llama("olmo2").map(finish)
}

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    gguf.llama("olmo2").map(finish)
}

fn finish(config: DecoderConfig) -> DecoderConfig {
    DecoderConfig { norms: NormPlacement::Post, qk_norm: QkNorm::WholeWidth, ..config }
}
