//! Qwen3-Next and Qwen 3.5, dense and with experts: gated delta nets on most layers, attention with an output
//! gate on the others. Gains of norms are stored minus 1, but for that of the delta net.

use serde_json::Value;

use super::names::{
    GGUF_LAYER, GGUF_RECURRENT, HF_LAYER, LayerNames, NO_RECURRENT, RecurrentNames, TensorNames,
    gguf as gguf_names, hf as hf_names,
};
use super::{ConfigError, Family, GgufConfig, HfConfig, qwen2_moe};
use crate::config::{DecoderConfig, DeltaShape, FeedForward, Mixer, QkNorm, SharedExpert};

pub(super) const FAMILY: Family = Family {
    model_type: "qwen3_next",
    aliases: &[],
    gguf_architectures: &["qwen3next"],
    from_hf: |hf| from_hf_moe(hf, "qwen3_next"),
    from_gguf: |gguf| from_gguf(gguf, "qwen3_next", false),
    hf_names: &NAMES,
    gguf_names: &GGUF_NAMES,
};

pub(super) const FAMILY_3_5: Family = Family {
    model_type: "qwen3_5",
    aliases: &["qwen3_5_text"],
    gguf_architectures: &["qwen35"],
    from_hf,
    from_gguf: |gguf| from_gguf(gguf, "qwen3_5", true),
    ..FAMILY
};

pub(super) const FAMILY_3_5_MOE: Family = Family {
    model_type: "qwen3_5_moe",
    aliases: &["qwen3_5_moe_text"],
    gguf_architectures: &["qwen35moe"],
    from_hf: |hf| from_hf_moe(hf, "qwen3_5_moe"),
    from_gguf: |gguf| from_gguf(gguf, "qwen3_5_moe", true),
    ..FAMILY
};

static GGUF_NAMES: TensorNames = gguf_names(LayerNames {
    post_attention_norm: "",
    pre_feed_forward_norm: "post_attention_norm",
    recurrent: RecurrentNames {
        input: "attn_qkv",
        delta_gate: "attn_gate",
        delta_strength: "ssm_beta",
        delta_time: "ssm_alpha",
        delta_by_head: "ssm_in",
        gates_by_head: "ssm_ba",
        ..GGUF_RECURRENT
    },
    ..GGUF_LAYER
});

/// One layer in this many has attention, unless the file says otherwise.
const ATTENTION_INTERVAL: usize = 4;

static NAMES: TensorNames = hf_names(LayerNames {
    experts_gate_up: "mlp.experts.gate_up_proj",
    experts_down: "mlp.experts.down_proj",
    recurrent: RecurrentNames {
        input: "linear_attn.in_proj_qkv",
        delta_gate: "linear_attn.in_proj_z",
        delta_strength: "linear_attn.in_proj_b",
        delta_time: "linear_attn.in_proj_a",
        delta_by_head: "linear_attn.in_proj_qkvz",
        gates_by_head: "linear_attn.in_proj_ba",
        conv: "linear_attn.conv1d",
        decay: "linear_attn.A_log",
        time_bias: "linear_attn.dt_bias",
        norm: "linear_attn.norm",
        output: "linear_attn.out_proj",
        ..NO_RECURRENT
    },
    ..HF_LAYER
});

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let mut config = hf.llama("qwen3_5")?;
    mix(hf, &mut config)?;
    Ok(config)
}

fn from_hf_moe(hf: &HfConfig, family: &'static str) -> Result<DecoderConfig, ConfigError> {
    let width = hf.required_size("moe_intermediate_size")?;
    let mut config = hf.with_defaults(&[("intermediate_size", width)]).llama(family)?;
    mix(hf, &mut config)?;
    let shared = hf.size("shared_expert_intermediate_size")?.filter(|width| *width > 0);
    let shared = shared.map(|width| SharedExpert { width, is_gated: true, has_norms: false });
    qwen2_moe::place_experts(hf, &mut config, shared)?;
    let always = hf.flag("norm_topk_prob")?.unwrap_or(true);
    for layer in &mut config.layers {
        if let FeedForward::Experts { routing, .. } = &mut layer.feed_forward {
            routing.normalize = always;
        }
    }
    Ok(config)
}

/// Settings that all have in common.
fn mix(hf: &HfConfig, config: &mut DecoderConfig) -> Result<(), ConfigError> {
    (config.norm_gain_offset, config.final_norm_gain_offset) = (1.0, 1.0);
    hf.only("attn_output_gate", "true")?;
    let delta = DeltaShape {
        n_key_heads: hf.required_size("linear_num_key_heads")?,
        is_tiled: false,
        n_value_heads: hf.required_size("linear_num_value_heads")?,
        key_dim: hf.required_size("linear_key_head_dim")?,
        value_dim: hf.required_size("linear_value_head_dim")?,
        kernel: hf.size("linear_conv_kernel_dim")?.unwrap_or(4),
    };
    let interval = hf.size("full_attention_interval")?.unwrap_or(ATTENTION_INTERVAL).max(1);
    let types = hf.get("layer_types").and_then(Value::as_array);
    for (layer_idx, layer) in config.layers.iter_mut().enumerate() {
        let has_attention = match types {
            None => (layer_idx + 1).is_multiple_of(interval),
            Some(types) => match types.get(layer_idx).and_then(Value::as_str) {
                Some("full_attention") => true,
                Some("linear_attention") => false,
                other => {
                    let (key, found) = (format!("layer_types[{layer_idx}]"), other.unwrap_or("nothing"));
                    return Err(ConfigError::invalid(key, found, "linear_attention or full_attention"));
                }
            },
        };
        match layer.attention_mut().filter(|_| has_attention) {
            Some(attention) => (attention.qk_norm, attention.has_output_gate) = (QkNorm::PerHead, true),
            None => layer.mixer = Mixer::GatedDelta(delta),
        }
    }
    Ok(())
}

/// The converter adds 1 to the gains, and for Qwen 3.5 it changes the order of the heads of values.
fn from_gguf(
    gguf: &GgufConfig<'_>,
    family: &'static str,
    is_tiled: bool,
) -> Result<DecoderConfig, ConfigError> {
    let mut config = gguf.llama(family)?;
    let n_value_heads = gguf.required_size("ssm.time_step_rank")?;
    let delta = DeltaShape {
        n_key_heads: gguf.required_size("ssm.group_count")?,
        is_tiled,
        n_value_heads,
        key_dim: gguf.required_size("ssm.state_size")?,
        value_dim: gguf.required_size("ssm.inner_size")?.checked_div(n_value_heads).unwrap_or(0),
        kernel: gguf.required_size("ssm.conv_kernel")?,
    };
    let n_predicting = gguf.size("nextn_predict_layers")?.unwrap_or(0).min(config.layers.len());
    config.layers.truncate(config.layers.len() - n_predicting);
    let shared = gguf.size("expert_shared_feed_forward_length")?.filter(|width| *width > 0);
    for (layer_idx, layer) in config.layers.iter_mut().enumerate() {
        let has_attention = gguf.has_tensor(&format!("blk.{layer_idx}.attn_q.weight"));
        match layer.attention_mut().filter(|_| has_attention) {
            Some(attention) => (attention.qk_norm, attention.has_output_gate) = (QkNorm::PerHead, true),
            None => layer.mixer = Mixer::GatedDelta(delta),
        }
        if let FeedForward::Experts { shared: of_layer, .. } = &mut layer.feed_forward {
            *of_layer = shared.map(|width| SharedExpert { width, is_gated: true, has_norms: false });
        }
    }
    Ok(config)
}
