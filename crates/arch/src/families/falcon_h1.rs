//! Falcon H1 (arXiv:2507.22448): a state space model and attention side by side in each layer, and
//! multipliers nearly everywhere. Those of queries, keys and values are put into the scale of scores and into
//! values. Source: the modelling file of `falcon_h1` in transformers.

use super::names::{GGUF, HF_LAYER, LayerNames, NO_RECURRENT, RecurrentNames, TensorNames, hf as hf_names};
use super::{ConfigError, Family, HfConfig, without_gguf};
use crate::config::{DecoderConfig, HybridConfig, Mixer, StateSpaceShape};

pub(super) const FAMILY: Family = Family {
    model_type: "falcon_h1",
    aliases: &[],
    gguf_architectures: &[],
    from_hf,
    from_gguf: without_gguf,
    hf_names: &NAMES,
    gguf_names: &GGUF,
};

static NAMES: TensorNames = TensorNames {
    final_norm: "model.final_layernorm",
    ..hf_names(LayerNames {
        pre_feed_forward_norm: "pre_ff_layernorm",
        gate: "feed_forward.gate_proj",
        up: "feed_forward.up_proj",
        down: "feed_forward.down_proj",
        recurrent: RecurrentNames {
            input: "mamba.in_proj",
            conv: "mamba.conv1d",
            decay: "mamba.A_log",
            time_bias: "mamba.dt_bias",
            skip: "mamba.D",
            norm: "mamba.norm",
            output: "mamba.out_proj",
            ..NO_RECURRENT
        },
        ..HF_LAYER
    })
};

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let config = hf.llama("falcon_h1")?;
    let factor = |key: &str| hf.number(key).map(|factor| factor.unwrap_or(1.0));
    let input = factor("attention_in_multiplier")?;
    let [gate, down] = factors(hf, "mlp_multipliers")?;
    let of_states = factors(hf, "ssm_multipliers")?.map(|factor| factor as f32);
    let state_input = factor("ssm_in_multiplier")? as f32;
    let state_space = state_space(hf, config.hidden_size)?;
    let (key, output) = (factor("key_multiplier")?, factor("attention_out_multiplier")?);
    let mut config = DecoderConfig {
        embedding_scale: factor("embedding_multiplier")? as f32,
        logits_scale: factor("lm_head_multiplier")? as f32,
        mlp_scales: [gate as f32, down as f32],
        ..config
    };
    let state_scale = factor("ssm_out_multiplier")? as f32;
    for layer in &mut config.layers {
        let Mixer::Attention(mut attention) = layer.mixer else { continue };
        attention.scale = (f64::from(attention.scale) * input * input * key) as f32;
        attention.value_scale = (input * output) as f32;
        let input_scales = of_states.map(|factor| factor * state_input);
        layer.mixer = Mixer::Hybrid(HybridConfig { attention, state_space, input_scales, state_scale });
    }
    for key in ["mamba_chunk_size", "mamba_conv_bias", "mamba_proj_bias", "projectors_bias"] {
        hf.get(key);
    }
    Ok(config)
}

/// Exactly `N` factors; ones where the file has none.
fn factors<const N: usize>(hf: &HfConfig, key: &str) -> Result<[f64; N], ConfigError> {
    let Some(factors) = hf.numbers(key)? else { return Ok([1.0; N]) };
    let n = factors.len();
    factors.try_into().map_err(|_| ConfigError::invalid(key, format!("{n} numbers"), format!("{N} numbers")))
}

fn state_space(hf: &HfConfig, hidden: usize) -> Result<StateSpaceShape, ConfigError> {
    let n_heads = hf.required_size("mamba_n_heads")?;
    let expand = hf.size("mamba_expand")?.unwrap_or(2);
    let width = hf.size("mamba_d_ssm")?.unwrap_or(hidden.saturating_mul(expand));
    // The size of a head may be the word auto.
    let head_dim = match hf.get("mamba_d_head").filter(|value| !value.is_string()) {
        Some(_) => hf.required_size("mamba_d_head")?,
        None => width.checked_div(n_heads).unwrap_or(0),
    };
    if Some(width) != n_heads.checked_mul(head_dim) {
        return Err(ConfigError::invalid("mamba_d_ssm", width, format!("{n_heads} heads of {head_dim}")));
    }
    let n_groups = hf.size("mamba_n_groups")?.unwrap_or(1);
    let is_normed = hf.flag("mamba_rms_norm")?.unwrap_or(false);
    let gates_last = hf.flag("mamba_norm_before_gate")?.unwrap_or(true);
    if is_normed && gates_last {
        let (key, found) = ("mamba_norm_before_gate".to_owned(), "true".to_owned());
        return Err(ConfigError::Variant { key, found, expected: "false, or mamba_rms_norm = false" });
    }
    let limits = hf.numbers("time_step_limit")?.unwrap_or_else(|| vec![0.0, f64::INFINITY]);
    let [least, most] = limits[..] else {
        return Err(ConfigError::invalid("time_step_limit", limits.len(), "two numbers"));
    };
    Ok(StateSpaceShape {
        n_heads,
        head_dim,
        n_groups,
        state_dim: hf.size("mamba_d_state")?.unwrap_or(256),
        kernel: hf.size("mamba_d_conv")?.unwrap_or(4),
        n_norm_groups: if is_normed { n_groups } else { 0 },
        time_limits: [least as f32, most as f32],
    })
}
