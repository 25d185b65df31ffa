//! Mistral (arXiv:2310.06825): Llama with a sliding window in every layer. Also the text part of Mistral 3's
//! files: Mistral Small 3 and Ministral 3, whose queries grow with the position. In GGUF files its
//! architecture is `llama`.

use super::names::{GGUF, HF};
use super::{ConfigError, Family, HfConfig, llama};
use crate::config::{DecoderConfig, RopeGrowth, RopeTable};

pub(super) const FAMILY: Family = Family {
    model_type: "mistral",
    aliases: &["mistral3", "ministral3"],
    gguf_architectures: &[],
    from_hf,
    from_gguf: llama::from_gguf,
    hf_names: &HF,
    gguf_names: &GGUF,
};

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let mut config = hf.llama("mistral")?;
    hf.slide(&mut config, |_| true)?;
    if let Some(beta) = hf.rope_number("full_attention", "llama_4_scaling_beta")? {
        let key = "original_max_position_embeddings";
        let interval = hf.rope_number("full_attention", key)?;
        let interval = interval.ok_or_else(|| ConfigError::Missing(format!("{key} of the rope scaling")))?;
        grow_queries(&mut config, hf.head_dim()?, RopeGrowth { beta, interval, offset: 0.0 })?;
    }
    Ok(config)
}

/// Gives the queries of all layers a rotary embedding of their own, which also scales them up.
fn grow_queries(config: &mut DecoderConfig, head_dim: usize, growth: RopeGrowth) -> Result<(), ConfigError> {
    let rope = &config.ropes[0];
    if 2 * rope.frequencies.len() != head_dim {
        let found = format!("{} of {head_dim} elements", 2 * rope.frequencies.len());
        return Err(ConfigError::invalid("llama_4_scaling_beta with rotated part of a head", found, "all"));
    }
    config.ropes.push(RopeTable { growth: Some(growth), ..rope.clone() });
    config.attentions_mut().for_each(|attention| attention.query_rope_idx = Some(1));
    Ok(())
}
