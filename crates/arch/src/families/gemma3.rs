//! Gemma 3, text (arXiv:2503.19786): norms on heads, five layers with a window to one without, each kind with
//! its own rotary embedding.

use super::gemma2::{NAMES, gemma, gemma_gguf};
use super::names::GGUF;
use super::{ConfigError, Family, GgufConfig, HfConfig};
use crate::config::{DecoderConfig, QkNorm};

pub(super) const FAMILY: Family = Family {
    model_type: "gemma3_text",
    aliases: &["gemma3"],
    gguf_architectures: &["gemma3", EMBEDDING],
    from_hf,
    from_gguf,
    hf_names: &NAMES,
    gguf_names: &GGUF,
};

/// Name of the architecture in files of EmbeddingGemma.
const EMBEDDING: &str = "gemma-embedding";

/// Sizes that `google/gemma-3-*` leave out of their `text_config`.
const DEFAULTS: [(&str, usize); 12] = [
    ("vocab_size", 262_208),
    ("hidden_size", 2304),
    ("intermediate_size", 9216),
    ("num_hidden_layers", 26),
    ("num_attention_heads", 8),
    ("num_key_value_heads", 4),
    ("head_dim", 256),
    ("max_position_embeddings", 131_072),
    ("sliding_window", 4096),
    ("sliding_window_pattern", 6),
    ("rope_theta", 1_000_000),
    ("rope_local_base_freq", 10_000),
];

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let hf = hf.with_defaults(&DEFAULTS);
    let mut config = gemma(&hf, "gemma3_text")?;
    let pattern = hf.required_size("sliding_window_pattern")?.max(1);
    hf.slide(&mut config, |layer_idx| !(layer_idx + 1).is_multiple_of(pattern))?;
    let local = match hf.get("rope_parameters").and_then(|p| p.get("sliding_attention")) {
        Some(_) => hf.rope("sliding_attention", hf.head_dim()?)?,
        None => {
            let theta = hf.number("rope_local_base_freq")?.unwrap_or(10_000.0);
            HfConfig::plain_rope(theta, hf.head_dim()?)?
        }
    };
    config.ropes.push(local);
    let config = DecoderConfig { joins_pictures: true, ..finish(config) };
    if !hf.flag("use_bidirectional_attention")?.unwrap_or(false) {
        return Ok(config);
    }
    Ok(embedding(config))
}

/// EmbeddingGemma: half of the window to each side.
fn embedding(config: DecoderConfig) -> DecoderConfig {
    config.with_attention(|attention| {
        attention.is_bidirectional = true;
        attention.sliding_window = attention.sliding_window.map(|window| window / 2 + 1);
    })
}

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    let mut config = gemma_gguf(gguf, "gemma3_text", 62)?;
    let window = gguf.size("attention.sliding_window")?.unwrap_or(1024);
    let windowed = gguf.windowed(6, false)?;
    config.set_windows(|layer_idx| windowed(layer_idx).then_some(window));
    let theta = gguf.number("rope.freq_base_swa")?.unwrap_or(10_000.0);
    config.ropes.push(HfConfig::plain_rope(theta, gguf.head_dim()?)?);
    let config = DecoderConfig { joins_pictures: true, ..finish(config) };
    Ok(if gguf.architecture() == EMBEDDING { embedding(config) } else { config })
}

/// Layers with a window use the second, local rotary embedding.
fn finish(config: DecoderConfig) -> DecoderConfig {
    config.with_attention(|attention| {
        attention.qk_norm = QkNorm::PerHead;
        attention.rope_idx = Some(usize::from(attention.sliding_window.is_some()));
    })
}
