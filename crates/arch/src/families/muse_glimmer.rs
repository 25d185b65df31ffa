//! Muse Glimmer, text: normed embeddings, norms of queries and keys without a gain, gated attention, four
//! norms a layer with two epsilons, full layers without rotation, scaled and capped logits.

use super::names::{GGUF, HF_GEMMA_LAYER, TensorNames, hf as hf_names};
use super::{ConfigError, Family, HfConfig, without_gguf};
use crate::config::{DecoderConfig, NormPlacement, QkNorm};

pub(super) const FAMILY: Family = Family {
    model_type: "muse_glimmer_text",
    aliases: &["muse_glimmer"],
    gguf_architectures: &[],
    from_hf,
    from_gguf: without_gguf,
    hf_names: &NAMES,
    gguf_names: &GGUF,
};

static NAMES: TensorNames = hf_names(HF_GEMMA_LAYER);

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let config = hf.llama("muse_glimmer_text")?;
    let mut config = DecoderConfig {
        norms: NormPlacement::PreAndPost,
        norm_gain_offset: 1.0,
        final_norm_gain_offset: 0.0,
        post_norm_eps: hf.number("post_norm_eps")?.map_or(config.post_norm_eps, |eps| eps as f32),
        activation: hf.activation("hidden_activation")?,
        normalizes_embeddings: true,
        logits_scale: hf.number("output_multiplier")?.unwrap_or(1.0) as f32,
        logits_softcap: hf.number("final_logit_softcapping")?.map(|cap| cap as f32),
        ..config
    };
    hf.slide(&mut config, |layer_idx| !(layer_idx + 1).is_multiple_of(4))?;
    let factor = hf.number("qk_scale_factor")?.unwrap_or(1.0) as f32;
    let bases = hf.numbers("layer_rope_theta")?;
    for (layer_idx, attention) in config.attentions_mut().enumerate() {
        attention.scale *= factor;
        attention.qk_norm = QkNorm::Plain;
        attention.is_gated = true;
        let base = bases.as_ref().and_then(|bases| bases.get(layer_idx));
        let is_rotated = base.map_or(attention.sliding_window.is_some(), |base| *base != 0.0);
        attention.rope_idx = is_rotated.then_some(0);
    }
    let theta = hf.rope_theta("full_attention")?;
    if let Some(other) = bases.into_iter().flatten().find(|base| *base != 0.0 && *base != theta) {
        return Err(ConfigError::invalid("layer_rope_theta", other, format!("0 or {theta}")));
    }
    Ok(config)
}
