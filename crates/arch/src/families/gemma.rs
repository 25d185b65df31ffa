//! Gemma 1 (arXiv:2403.08295): Llama with gains stored minus 1, embeddings multiplied by the root of their
//! width, and GELU.

use super::names::{GGUF, HF};
use super::{ConfigError, Family, GgufConfig, HfConfig};
use crate::config::{Activation, DecoderConfig};

pub(super) const FAMILY: Family = Family {
    model_type: "gemma",
    aliases: &[],
    gguf_architectures: &["gemma"],
    from_hf,
    from_gguf,
    hf_names: &HF,
    gguf_names: &GGUF,
};

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let config = hf.llama("gemma")?;
    // The first files name exact GELU as `hidden_act`, with which the model was not trained.
    let activation = match hf.get("hidden_activation") {
        Some(_) => hf.activation("hidden_activation")?,
        None => Activation::GeluTanh,
    };
    Ok(DecoderConfig {
        norm_gain_offset: 1.0,
        final_norm_gain_offset: 1.0,
        tied_embeddings: hf.flag("tie_word_embeddings")?.unwrap_or(true),
        ..with_gemmas(config, activation)
    })
}

/// GGUF's norm gains include the 1.
fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    Ok(with_gemmas(gguf.llama("gemma")?, Activation::GeluTanh))
}

fn with_gemmas(config: DecoderConfig, activation: Activation) -> DecoderConfig {
    DecoderConfig { embedding_scale: (config.hidden_size as f64).sqrt() as f32, activation, ..config }
}
