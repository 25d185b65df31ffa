//! LFM2, dense and with experts (arXiv:2511.23404): gated short convolutions, and attention with normed heads
//! in some layers.

use serde_json::Value;

use super::names::{
    GGUF_LAYER, HF_LAYER, LayerNames, NO_RECURRENT, RecurrentNames, TensorNames, gguf as gguf_names,
    hf as hf_names,
};
use super::{ConfigError, Family, GgufConfig, HfConfig};
use crate::config::{DecoderConfig, FeedForward, Mixer, QkNorm, Routing};

pub(super) const FAMILY: Family = Family {
    model_type: "lfm2",
    aliases: &[],
    gguf_architectures: &["lfm2"],
    from_hf,
    from_gguf: |gguf| from_gguf(gguf, "lfm2"),
    hf_names: &NAMES,
    gguf_names: &GGUF_NAMES,
};

pub(super) const FAMILY_MOE: Family = Family {
    model_type: "lfm2_moe",
    gguf_architectures: &["lfm2moe"],
    from_hf: from_hf_moe,
    from_gguf: |gguf| from_gguf(gguf, "lfm2_moe"),
    ..FAMILY
};

static GGUF_NAMES: TensorNames = TensorNames {
    final_norm: "token_embd_norm",
    ..gguf_names(LayerNames {
        recurrent: RecurrentNames {
            input: "shortconv.in_proj",
            conv: "shortconv.conv",
            output: "shortconv.out_proj",
            ..NO_RECURRENT
        },
        ..GGUF_LAYER
    })
};

static NAMES: TensorNames = TensorNames {
    final_norm: "model.embedding_norm",
    ..hf_names(LayerNames {
        pre_attention_norm: "operator_norm",
        pre_feed_forward_norm: "ffn_norm",
        attention_output: "self_attn.out_proj",
        query_norm: "self_attn.q_layernorm",
        key_norm: "self_attn.k_layernorm",
        gate: "feed_forward.w1",
        up: "feed_forward.w3",
        down: "feed_forward.w2",
        router: "feed_forward.gate",
        router_bias: "feed_forward.expert_bias",
        expert_gate: "feed_forward.experts.{}.w1",
        expert_up: "feed_forward.experts.{}.w3",
        expert_down: "feed_forward.experts.{}.w2",
        recurrent: RecurrentNames {
            input: "conv.in_proj",
            conv: "conv.conv",
            output: "conv.out_proj",
            ..NO_RECURRENT
        },
        ..HF_LAYER
    })
};

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let width = match hf.size("block_ff_dim")? {
        Some(width) => width,
        None => hf.required_size("intermediate_size")?,
    };
    // The rest of the rule is LLaMA's: two thirds, times a factor, rounded up to a multiple.
    let factor = hf.number("block_ffn_dim_multiplier")?.unwrap_or(1.0);
    let multiple = hf.size("block_multiple_of")?.unwrap_or(256).max(1);
    let width = match hf.flag("block_auto_adjust_ff_dim")?.unwrap_or(true) {
        false => width,
        true => {
            ((factor * (2 * (width / 3) + 2 * (width % 3) / 3) as f64) as usize).next_multiple_of(multiple)
        }
    };
    lfm2(hf, "lfm2", width)
}

fn from_hf_moe(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let mut config = lfm2(hf, "lfm2_moe", hf.required_size("intermediate_size")?)?;
    let routing = Routing {
        normalize: hf.flag("norm_topk_prob")?.unwrap_or(true),
        scale: hf.number("routed_scaling_factor")?.unwrap_or(1.0) as f32,
        ..Routing::sigmoid(
            hf.required_size("num_experts_per_tok")?,
            hf.flag("use_expert_bias")?.unwrap_or(true),
        )
    };
    let feed_forward = FeedForward::Experts {
        n_experts: hf.required_size("num_experts")?,
        width: hf.required_size("moe_intermediate_size")?,
        routing,
        shared: None,
    };
    let n_dense = hf.size("num_dense_layers")?.unwrap_or(2);
    config.layers.iter_mut().skip(n_dense).for_each(|layer| layer.feed_forward = feed_forward);
    Ok(config)
}

/// Configuration that both share; the dense feed-forward blocks have this width.
fn lfm2(hf: &HfConfig, family: &'static str, width: usize) -> Result<DecoderConfig, ConfigError> {
    // Older files call the sizes otherwise.
    let mut config = hf.with_defaults(&[("intermediate_size", width)]).llama(family)?;
    config.norm_eps = hf.number("norm_eps")?.unwrap_or(1e-5) as f32;
    let tied = hf.flag("tie_embedding")?.or(hf.flag("tie_word_embeddings")?);
    config.tied_embeddings = tied.unwrap_or(true);
    let kernel = hf.size("conv_L_cache")?.unwrap_or(3);
    // Biases are found by their tensors, and the channels are as many as the residual stream is wide.
    hf.get("conv_bias");
    let hidden = config.hidden_size;
    if let Some(other) = hf.size("conv_dim")?.filter(|n| *n != hidden) {
        return Err(ConfigError::invalid("conv_dim", other, format!("{hidden}, the hidden size")));
    }
    let attends = attention_layers(hf, config.layers.len())?;
    for (layer, attends) in config.layers.iter_mut().zip(attends) {
        layer.feed_forward = FeedForward::Dense { width };
        match layer.attention_mut().filter(|_| attends) {
            Some(attention) => attention.qk_norm = QkNorm::PerHead,
            None => layer.mixer = Mixer::ShortConv { kernel, n_channels: None },
        }
    }
    Ok(config)
}

/// Layers with attention, by `layer_types` or the older list of their indices.
fn attention_layers(hf: &HfConfig, n_layers: usize) -> Result<Vec<bool>, ConfigError> {
    let indices = hf.sizes("full_attn_idxs")?;
    let Some(types) = hf.get("layer_types").and_then(Value::as_array) else {
        let indices = indices.ok_or_else(|| ConfigError::Missing("layer_types".to_owned()))?;
        return Ok((0..n_layers).map(|layer_idx| indices.contains(&layer_idx)).collect());
    };
    let of_layer = |layer_idx: usize| match types.get(layer_idx).and_then(Value::as_str) {
        Some("full_attention") => Ok(true),
        Some("conv") => Ok(false),
        other => {
            let key = format!("layer_types[{layer_idx}]");
            Err(ConfigError::invalid(key, other.unwrap_or("nothing"), "conv or full_attention"))
        }
    };
    (0..n_layers).map(of_layer).collect()
}

fn from_gguf(gguf: &GgufConfig<'_>, family: &'static str) -> Result<DecoderConfig, ConfigError> {
    let mut config = gguf.llama(family)?;
    let kernel = gguf.required_size("shortconv.l_cache")?;
    for (layer_idx, layer) in config.layers.iter_mut().enumerate() {
        if let FeedForward::Experts { routing, .. } = &mut layer.feed_forward {
            *routing = gguf.sigmoid_routing()?;
        }
        let has_attention = gguf.has_tensor(&format!("blk.{layer_idx}.attn_q.weight"));
        match layer.attention_mut().filter(|_| has_attention) {
            Some(attention) => attention.qk_norm = QkNorm::PerHead,
            None => layer.mixer = Mixer::ShortConv { kernel, n_channels: None },
        }
    }
    Ok(config)
}
