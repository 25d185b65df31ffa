//! Granite 4: state space models and attention, each followed by a feed-forward, with or without experts
//! beside it, and with Granite's multipliers.

use serde_json::Value;

use super::granite::with_multipliers;
use super::names::{GGUF, HF_LAYER, LayerNames, NO_RECURRENT, RecurrentNames, TensorNames, hf as hf_names};
use super::{ConfigError, Family, GgufConfig, HfConfig};
use crate::config::{DecoderConfig, FeedForward, Mixer, Routing, SharedExpert, StateSpaceShape};

pub(super) const FAMILY: Family = Family {
    model_type: "granitemoehybrid",
    aliases: &[],
    gguf_architectures: &[],
    from_hf,
    from_gguf,
    hf_names: &NAMES,
    gguf_names: &GGUF,
};

/// Names of all families of Granite with experts or a stacked feed-forward.
pub(super) static NAMES: TensorNames = hf_names(LayerNames {
    gate: "",
    up: "",
    gate_up: "shared_mlp.input_linear",
    down: "shared_mlp.output_linear",
    router: "block_sparse_moe.router.layer",
    experts_gate_up: "block_sparse_moe.input_linear.weight",
    experts_down: "block_sparse_moe.output_linear.weight",
    shared_gate: "",
    shared_up: "",
    shared_gate_up: "shared_mlp.input_linear",
    shared_down: "shared_mlp.output_linear",
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
});

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let mut config = with_multipliers(hf, "granitemoehybrid")?;
    hf.only("normalization_function", "rmsnorm")?;
    let feed_forward = feed_forward(hf)?;
    let is_rotated = match hf.get("position_embedding_type").and_then(Value::as_str) {
        Some("rope") => true,
        None | Some("nope") => false,
        Some(other) => {
            return Err(ConfigError::invalid("position_embedding_type", other, "rope or nope"));
        }
    };
    let state_space = state_space(hf)?;
    let types = hf.get("layer_types").or_else(|| hf.get("layers_block_type")).and_then(Value::as_array);
    for (layer_idx, layer) in config.layers.iter_mut().enumerate() {
        layer.feed_forward = feed_forward;
        match types.and_then(|types| types.get(layer_idx)).and_then(Value::as_str) {
            Some("attention") => {
                layer.attention_mut().into_iter().for_each(|a| a.rope_idx = is_rotated.then_some(0));
            }
            Some("mamba") => layer.mixer = Mixer::StateSpace(state_space),
            other => {
                let (key, found) = (format!("layer_types[{layer_idx}]"), other.unwrap_or("nothing"));
                return Err(ConfigError::invalid(key, found, "mamba or attention"));
            }
        }
    }
    for key in ["mamba_chunk_size", "mamba_conv_bias", "mamba_expand", "mamba_proj_bias"] {
        hf.get(key);
    }
    Ok(config)
}

/// A feed-forward that every token uses and, where there are experts, those beside it.
fn feed_forward(hf: &HfConfig) -> Result<FeedForward, ConfigError> {
    let shared_width = hf.required_size("shared_intermediate_size")?;
    let n_used = hf.size("num_experts_per_tok")?.unwrap_or(0);
    let n_experts = hf.size("num_local_experts")?.unwrap_or(0);
    if n_experts == 0 {
        return Ok(FeedForward::Dense { width: shared_width });
    }
    Ok(FeedForward::Experts {
        n_experts,
        width: hf.required_size("intermediate_size")?,
        routing: Routing::softmax(n_used, true),
        shared: (shared_width > 0).then_some(SharedExpert {
            width: shared_width,
            is_gated: false,
            has_norms: false,
        }),
    })
}

fn state_space(hf: &HfConfig) -> Result<StateSpaceShape, ConfigError> {
    let n_groups = hf.size("mamba_n_groups")?.unwrap_or(1);
    Ok(StateSpaceShape {
        n_heads: hf.size("mamba_n_heads")?.unwrap_or(128),
        head_dim: hf.size("mamba_d_head")?.unwrap_or(64),
        n_groups,
        state_dim: hf.size("mamba_d_state")?.unwrap_or(256),
        kernel: hf.size("mamba_d_conv")?.unwrap_or(4),
        n_norm_groups: n_groups,
        time_limits: [0.0, f32::INFINITY],
    })
}

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    Err(ConfigError::not_supported(gguf.architecture()))
}
