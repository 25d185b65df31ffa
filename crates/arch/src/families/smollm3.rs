//! SmolLM 3: Llama with every fourth layer unrotated (NoPE, arXiv:2501.18795).

use super::names::{GGUF, HF};
use super::{ConfigError, Family, GgufConfig, HfConfig};
use crate::config::{DecoderConfig, RopeStyle};

pub(super) const FAMILY: Family = Family {
    model_type: "smollm3",
    aliases: &[],
    gguf_architectures: &["smollm3"],
    from_hf,
    from_gguf,
    hf_names: &HF,
    gguf_names: &GGUF,
};

/// One layer in this many is not rotated, unless the file says otherwise; GGUF files do not say.
const NO_ROPE_INTERVAL: usize = 4;

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let mut config = hf.llama("smollm3")?;
    config.tied_embeddings = hf.flag("tie_word_embeddings")?.unwrap_or(true);
    let interval = hf.size("no_rope_layer_interval")?.unwrap_or(NO_ROPE_INTERVAL).max(1);
    let flags = hf.sizes("no_rope_layers")?;
    for (layer_idx, attention) in config.attentions_mut().enumerate() {
        // In spite of the key's name, 1 means that the layer is rotated.
        let given = flags.as_ref().and_then(|flags| flags.get(layer_idx)).map(|flag| *flag != 0);
        let is_rotated = given.unwrap_or(!(layer_idx + 1).is_multiple_of(interval));
        attention.rope_idx = is_rotated.then_some(0);
    }
    if hf.flag("use_sliding_window")?.unwrap_or(false) {
        let unrotated: Vec<bool> =
            config.attentions().map(|attention| attention.rope_idx.is_none()).collect();
        hf.slide(&mut config, |layer_idx| unrotated[layer_idx])?;
    }
    Ok(config)
}

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    let mut config = gguf.llama("smollm3")?;
    for (layer_idx, attention) in config.attentions_mut().enumerate() {
        attention.rope_style = RopeStyle::Interleaved;
        attention.rope_idx = (!(layer_idx + 1).is_multiple_of(NO_ROPE_INTERVAL)).then_some(0);
    }
    Ok(config)
}
