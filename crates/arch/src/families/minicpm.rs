//! MiniCPM (arXiv:2404.06395): Llama with multipliers on embeddings, residuals and logits. MiniCPM 3 also has
//! latent attention. Source: the modelling file of `minicpm3` in transformers, which has no code for the
//! other versions; llama.cpp computes those with the same multipliers.

use super::names::{GGUF, HF};
use super::{ConfigError, Family, GgufConfig, HfConfig, deepseek, granite, without_gguf};
use crate::config::{DecoderConfig, RopeStyle};

pub(super) const FAMILY: Family = Family {
    model_type: "minicpm",
    aliases: &[],
    gguf_architectures: &["minicpm"],
    from_hf,
    from_gguf,
    hf_names: &HF,
    gguf_names: &GGUF,
};

pub(super) const FAMILY_3: Family = Family {
    model_type: "minicpm3",
    gguf_architectures: &[],
    from_hf: from_hf_3,
    from_gguf: without_gguf,
    ..FAMILY
};

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    with_multipliers(hf, hf.llama("minicpm")?)
}

fn from_hf_3(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let value_dim = match hf.size("v_head_dim")? {
        Some(dim) => dim,
        None => hf
            .required_size("hidden_size")?
            .checked_div(hf.required_size("num_attention_heads")?)
            .unwrap_or(0),
    };
    with_multipliers(hf, deepseek::with_latents(hf, "minicpm3", (value_dim, RopeStyle::HalfSplit))?)
}

/// Scales embeddings by `scale_emb`, what each block adds by `scale_depth / sqrt(layers)`, and logits by
/// `dim_model_base / hidden_size`.
fn with_multipliers(hf: &HfConfig, config: DecoderConfig) -> Result<DecoderConfig, ConfigError> {
    let required = |key: &str| hf.number(key)?.ok_or_else(|| ConfigError::Missing(key.to_owned()));
    let (scale, depth, base) =
        (required("scale_emb")?, required("scale_depth")?, required("dim_model_base")?);
    // Draft heads scale their one layer by the depth of the model; the model itself does not read this key.
    hf.number("mup_denominator")?;
    Ok(DecoderConfig {
        tied_embeddings: hf.flag("tie_word_embeddings")?.unwrap_or(true),
        embedding_scale: scale as f32,
        residual_scale: (depth / (config.layers.len() as f64).sqrt()) as f32,
        logits_scale: (base / config.hidden_size as f64) as f32,
        ..config
    })
}

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    // Files without these keys leave the multipliers to the program that reads them.
    for key in ["embedding_scale", "residual_scale", "logit_scale"] {
        if gguf.number(key)?.is_none() {
            return Err(ConfigError::Missing(format!("minicpm.{key}")));
        }
    }
    granite::with_gguf_multipliers(gguf, "minicpm")
}
