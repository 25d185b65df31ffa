//! Cohere's Command R (`cohere`) and Command A and R7B (`cohere2`): mixer and feed-forward read the same
//! layer norm without a bias, heads are rotated in pairs of neighbours, and logits are scaled; Command R+
//! norms heads. In `cohere2`, three layers of four have a window and are rotated; the fourth attends to all
//! positions and is not. Source: the modelling files of `cohere` and `cohere2` in transformers.

use super::names::{GGUF_LAYER, HF_LAYER, LayerNames, TensorNames, gguf as gguf_names, hf as hf_names};
use super::{ConfigError, Family, GgufConfig, HfConfig};
use crate::config::{DecoderConfig, NormKind, QkNorm, RopeStyle};

pub(super) const FAMILY: Family = Family {
    model_type: "cohere",
    aliases: &[],
    gguf_architectures: &["command-r"],
    from_hf,
    from_gguf,
    hf_names: &NAMES,
    gguf_names: &GGUF_NAMES,
};

pub(super) const FAMILY_2: Family = Family {
    model_type: "cohere2",
    gguf_architectures: &["cohere2"],
    from_hf: from_hf_2,
    from_gguf: from_gguf_2,
    ..FAMILY
};

static NAMES: TensorNames = hf_names(LayerNames { pre_feed_forward_norm: "input_layernorm", ..HF_LAYER });

static GGUF_NAMES: TensorNames = gguf_names(LayerNames { pre_feed_forward_norm: "attn_norm", ..GGUF_LAYER });

/// Factor of the logits if the file has none.
const LOGIT_SCALE: f64 = 0.0625;

/// Interval of the layers of `cohere2` that attend to all positions, unless the file says otherwise.
const FULL_INTERVAL: usize = 4;

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let mut config = any_from_hf(&hf.with_defaults(&[("rope_theta", 500_000)]), "cohere")?;
    if hf.flag("use_qk_norm")?.unwrap_or(false) {
        config.attentions_mut().for_each(|attention| attention.qk_norm = QkNorm::LayerPerHead);
    }
    // The length of the last training, where the other one is that of the first.
    let longest = hf.size("model_max_length")?.unwrap_or(0);
    config.max_sequence_tokens = config.max_sequence_tokens.max(longest);
    Ok(config)
}

fn from_hf_2(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let mut config = any_from_hf(hf, "cohere2")?;
    hf.only("rotary_pct", "1.0")?;
    hf.only("use_parallel_block", "true")?;
    hf.only("use_gated_activation", "true")?;
    hf.only("position_embedding_type", "rope_gptj")?;
    hf.only("order_of_interleaved_layers", "local_attn_first")?;
    let interval = hf.size("sliding_window_pattern")?.unwrap_or(FULL_INTERVAL).max(1);
    hf.slide(&mut config, |layer_idx| !(layer_idx + 1).is_multiple_of(interval))?;
    Ok(rotated_in_windows(config))
}

fn any_from_hf(hf: &HfConfig, family: &'static str) -> Result<DecoderConfig, ConfigError> {
    let config = hf.llama(family)?;
    Ok(DecoderConfig {
        norm_eps: hf.number("layer_norm_eps")?.unwrap_or(1e-5) as f32,
        logits_scale: hf.number("logit_scale")?.unwrap_or(LOGIT_SCALE) as f32,
        tied_embeddings: hf.flag("tie_word_embeddings")?.unwrap_or(true),
        ..parallel(config)
    })
}

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    let mut config = any_from_gguf(gguf, "cohere")?;
    if gguf.has_tensor("blk.0.attn_q_norm.weight") {
        config.attentions_mut().for_each(|attention| attention.qk_norm = QkNorm::LayerPerHead);
    }
    Ok(config)
}

fn from_gguf_2(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    let mut config = any_from_gguf(gguf, "cohere2")?;
    if let Some(window) = gguf.size("attention.sliding_window")?.filter(|window| *window > 0) {
        let has_window = gguf.windowed(FULL_INTERVAL, false)?;
        config.set_windows(|layer_idx| has_window(layer_idx).then_some(window));
    }
    Ok(rotated_in_windows(config))
}

fn any_from_gguf(gguf: &GgufConfig<'_>, family: &'static str) -> Result<DecoderConfig, ConfigError> {
    let config = gguf.llama(family)?;
    Ok(DecoderConfig {
        norm_eps: gguf.number("attention.layer_norm_epsilon")?.unwrap_or(1e-5) as f32,
        logits_scale: gguf.number("logit_scale")?.unwrap_or(LOGIT_SCALE) as f32,
        ..parallel(config)
    })
}

fn parallel(config: DecoderConfig) -> DecoderConfig {
    let config = config.with_attention(|attention| attention.rope_style = RopeStyle::Interleaved);
    DecoderConfig { is_parallel: true, norm_kind: NormKind::Layer, ..config }
}

/// Removes the rotation of layers that attend to all positions.
fn rotated_in_windows(config: DecoderConfig) -> DecoderConfig {
    config.with_attention(|attention| attention.rope_idx = attention.sliding_window.map(|_| 0))
}
