//! Llama 4, text: attention within chunks, every fourth layer over all positions without rotation and with
//! queries that grow with the position, norms of heads after rotation, experts whose inputs are scaled.

use super::names::{ExpertsLayout, GGUF, HF_LAYER, LayerNames, TensorNames, hf as hf_names};
use super::{ConfigError, Family, HfConfig, without_gguf};
use crate::config::{
    DecoderConfig, FeedForward, QkNorm, RopeGrowth, RopeStyle, RopeTable, Routing, SharedExpert,
};

pub(super) const FAMILY: Family = Family {
    model_type: "llama4_text",
    aliases: &["llama4"],
    gguf_architectures: &[],
    from_hf,
    from_gguf: without_gguf,
    hf_names: &NAMES,
    gguf_names: &GGUF,
};

static NAMES: TensorNames = hf_names(LayerNames {
    gate: "feed_forward.gate_proj",
    up: "feed_forward.up_proj",
    down: "feed_forward.down_proj",
    router: "feed_forward.router",
    // One by one as quantizing libraries write them.
    expert_gate: "feed_forward.experts.{}.gate_proj",
    expert_up: "feed_forward.experts.{}.up_proj",
    expert_down: "feed_forward.experts.{}.down_proj",
    experts_gate_up: "feed_forward.experts.gate_up_proj",
    experts_down: "feed_forward.experts.down_proj",
    experts_layout: ExpertsLayout { is_transposed: true, is_interleaved: false },
    shared_gate: "feed_forward.shared_expert.gate_proj",
    shared_up: "feed_forward.shared_expert.up_proj",
    shared_down: "feed_forward.shared_expert.down_proj",
    ..HF_LAYER
});

/// One layer in this many is not rotated, unless the file says otherwise.
const NO_ROPE_INTERVAL: usize = 4;

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let mut config = hf.llama("llama4_text")?;
    let chunk = hf.size("attention_chunk_size")?;
    let norms_heads = hf.flag("use_qk_norm")?.unwrap_or(true);
    let interval = hf.size("no_rope_layer_interval")?.unwrap_or(NO_ROPE_INTERVAL).max(1);
    let flags = hf.sizes("no_rope_layers")?.filter(|flags| !flags.is_empty());
    let grows = hf.flag("attn_temperature_tuning")?.unwrap_or(true);
    let growth = RopeGrowth {
        beta: hf.number("attn_scale")?.unwrap_or(0.1),
        interval: hf.number("floor_scale")?.unwrap_or(8192.0),
        offset: 1.0,
    };
    // Angles of zero: queries are scaled and not rotated.
    let still = RopeTable {
        frequencies: vec![0.0; hf.head_dim()? / 2],
        amplitude: 1.0,
        growth: Some(growth),
        sections: Vec::new(),
        short: None,
    };
    config.ropes.push(still);
    for (layer_idx, attention) in config.attentions_mut().enumerate() {
        // In spite of the key's name, 1 means that the layer is rotated.
        let given = flags.as_ref().and_then(|flags| flags.get(layer_idx)).map(|flag| *flag != 0);
        let is_rotated = given.unwrap_or(!(layer_idx + 1).is_multiple_of(interval));
        attention.rope_style = RopeStyle::Interleaved;
        if is_rotated {
            attention.chunk = chunk;
            attention.qk_norm = if norms_heads { QkNorm::PlainAfterRope } else { QkNorm::None };
        } else {
            attention.rope_idx = None;
            attention.query_rope_idx = grows.then_some(1);
        }
    }
    place_experts(hf, &mut config)?;
    Ok(config)
}

fn place_experts(hf: &HfConfig, config: &mut DecoderConfig) -> Result<(), ConfigError> {
    let width = hf.required_size("intermediate_size")?;
    let dense = FeedForward::Dense { width: hf.required_size("intermediate_size_mlp")? };
    let n_used = hf.size("num_experts_per_tok")?.unwrap_or(1);
    let routing = Routing { normalize: false, scales_inputs: true, ..Routing::sigmoid(n_used, false) };
    let shared = Some(SharedExpert { width, is_gated: false, has_norms: false });
    let n_experts = hf.required_size("num_local_experts")?;
    let experts = FeedForward::Experts { n_experts, width, routing, shared };
    let step = hf.size("interleave_moe_layer_step")?.unwrap_or(1).max(1);
    let listed = hf.sizes("moe_layers")?;
    for (layer_idx, layer) in config.layers.iter_mut().enumerate() {
        let by_step = (layer_idx + 1).is_multiple_of(step);
        let has_experts = listed.as_ref().map_or(by_step, |listed| listed.contains(&layer_idx));
        layer.feed_forward = if has_experts { experts } else { dense };
    }
    Ok(())
}
