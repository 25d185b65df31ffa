//! EXAONE 4 (arXiv:2507.11407): norms after each block and of each head. Large models have a window on three
//! layers of four; the others attend to all positions and are not rotated. Source: the modelling file of
//! `exaone4` in transformers.

use super::names::GGUF;
use super::{ConfigError, Family, GgufConfig, HfConfig, olmo2};
use crate::config::{DecoderConfig, NormPlacement, QkNorm};

pub(super) const FAMILY: Family = Family {
    model_type: "exaone4",
    aliases: &[],
    gguf_architectures: &["exaone4"],
    from_hf,
    from_gguf,
    hf_names: &olmo2::NAMES,
    gguf_names: &GGUF,
};

/// Interval of the layers that attend to all positions, unless the file says otherwise.
const FULL_INTERVAL: usize = 4;

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let mut config = finish(hf.llama("exaone4")?);
    let slides = windowed(hf, config.layers.len())?;
    hf.slide(&mut config, |layer_idx| slides[layer_idx])?;
    Ok(rotated_in_windows(config))
}

/// Whether each layer has a window: from a repeated pattern of letters, `L` for local and `G` for global, or
/// every n-th layer has none. With a pattern, the last layer has none either.
fn windowed(hf: &HfConfig, n_layers: usize) -> Result<Vec<bool>, ConfigError> {
    let key = "sliding_window_pattern";
    let letters = hf.get(key).and_then(serde_json::Value::as_str);
    let Some(letters) = letters else {
        let interval = hf.size(key)?.unwrap_or(FULL_INTERVAL).max(1);
        return Ok((1..=n_layers).map(|n| !n.is_multiple_of(interval)).collect());
    };
    if letters.is_empty() || letters.bytes().any(|letter| !b"LG".contains(&letter)) {
        return Err(ConfigError::invalid(key, letters, "letters L and G"));
    }
    let is_local = letters.bytes().map(|letter| letter == b'L').cycle();
    Ok(is_local.take(n_layers).enumerate().map(|(i, is_local)| is_local && i + 1 < n_layers).collect())
}

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    let mut config = finish(gguf.llama("exaone4")?);
    if let Some(window) = gguf.size("attention.sliding_window")?.filter(|window| *window > 0) {
        let has_window = gguf.windowed(FULL_INTERVAL, false)?;
        config.set_windows(|layer_idx| has_window(layer_idx).then_some(window));
    }
    Ok(rotated_in_windows(config))
}

fn finish(config: DecoderConfig) -> DecoderConfig {
    let config = config.with_attention(|attention| attention.qk_norm = QkNorm::PerHead);
    DecoderConfig { norms: NormPlacement::Post, ..config }
}

/// Leaves layers without a window unrotated in a model with windows.
fn rotated_in_windows(config: DecoderConfig) -> DecoderConfig {
    if config.attentions().all(|attention| attention.sliding_window.is_none()) {
        return config;
    }
    config.with_attention(|attention| attention.rope_idx = attention.sliding_window.map(|_| 0))
}
