//! Gemma 2 (arXiv:2408.00118): norms before and after each block, soft caps, every other layer with a window.

use super::names::{GGUF, HF_GEMMA_LAYER, TensorNames, hf};
use super::{ConfigError, Family, GgufConfig, HfConfig};
use crate::config::{Activation, DecoderConfig, NormPlacement};

pub(super) const FAMILY: Family = Family {
    model_type: "gemma2",
    aliases: &[],
    gguf_architectures: &["gemma2"],
    from_hf,
    from_gguf,
    hf_names: &NAMES,
    gguf_names: &GGUF,
};

pub(super) static NAMES: TensorNames = hf(HF_GEMMA_LAYER);

/// Every other layer has a sliding window, beginning with the first.
fn slides(layer_idx: usize) -> bool {
    layer_idx.is_multiple_of(2)
}

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let mut config = gemma(hf, "gemma2")?;
    config.logits_softcap = hf.number("final_logit_softcapping")?.map(|cap| cap as f32);
    let cap = hf.number("attn_logit_softcapping")?.map(|cap| cap as f32);
    config.attentions_mut().for_each(|attention| attention.softcap = cap);
    hf.slide(&mut config, slides)?;
    Ok(config)
}

/// Parts that Gemma 2 and 3 share.
pub(super) fn gemma(hf: &HfConfig, family: &'static str) -> Result<DecoderConfig, ConfigError> {
    let query_scalar = hf.number("query_pre_attn_scalar")?.unwrap_or(256.0);
    let config = hf.llama(family)?.with_attention(|attention| attention.scale = inverse_root(query_scalar));
    Ok(DecoderConfig {
        norm_gain_offset: 1.0,
        final_norm_gain_offset: 1.0,
        embedding_scale: (config.hidden_size as f64).sqrt() as f32,
        norms: NormPlacement::PreAndPost,
        activation: match hf.get("hidden_activation") {
            Some(_) => hf.activation("hidden_activation")?,
            None => Activation::GeluTanh,
        },
        tied_embeddings: hf.flag("tie_word_embeddings")?.unwrap_or(true),
        ..config
    })
}

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    let mut config = gemma_gguf(gguf, "gemma2", 46)?;
    config.logits_softcap = Some(gguf.number("final_logit_softcapping")?.unwrap_or(30.0) as f32);
    let cap = gguf.number("attn_logit_softcapping")?.unwrap_or(50.0) as f32;
    config.attentions_mut().for_each(|attention| attention.softcap = Some(cap));
    let window = gguf.size("attention.sliding_window")?.unwrap_or(4096);
    config.set_windows(|layer_idx| slides(layer_idx).then_some(window));
    Ok(config)
}

/// Common parts of Gemma 2 and 3 in GGUF files. GGUF's norm gains include the 1. The queries' scale is not in
/// the file: it is that of the heads, except in the largest model (recognized by its number of layers), where
/// it is that of `hidden / heads`.
pub(super) fn gemma_gguf(
    gguf: &GgufConfig<'_>,
    family: &'static str,
    n_layers_of_largest: usize,
) -> Result<DecoderConfig, ConfigError> {
    let config = gguf.llama(family)?;
    let query_scalar = if config.layers.len() == n_layers_of_largest {
        config.hidden_size as f64 / gguf.required_size("attention.head_count")? as f64
    } else {
        gguf.head_dim()? as f64
    };
    let config = config.with_attention(|attention| attention.scale = inverse_root(query_scalar));
    Ok(DecoderConfig {
        embedding_scale: (config.hidden_size as f64).sqrt() as f32,
        norms: NormPlacement::PreAndPost,
        activation: Activation::GeluTanh,
        ..config
    })
}

fn inverse_root(x: f64) -> f32 {
    (1.0 / x.sqrt()) as f32
}
