//! Gemma 4, text: full layers with heads of another shape than layers with a window, values normed without a
//! gain, a factor after each layer; the small models have embeddings for each layer and layers that read the
//! keys and values of earlier ones, the large one a dense feed-forward beside experts.

use super::names::{GGUF, HF_GEMMA_LAYER, LayerNames, TensorNames, hf as hf_names};
use super::{ConfigError, Family, HfConfig, without_gguf};
use crate::config::{Activation, DecoderConfig, FeedForward, NormPlacement, QkNorm, Routing, SharedExpert};

pub(super) const FAMILY: Family = Family {
    model_type: "gemma4_text",
    aliases: &["gemma4"],
    gguf_architectures: &[],
    from_hf,
    from_gguf: without_gguf,
    hf_names: &NAMES,
    gguf_names: &GGUF,
};

static NAMES: TensorNames = hf_names(LayerNames {
    router: "router.proj",
    router_scale: "router.scale",
    expert_scales: "router.per_expert_scale",
    // One by one as quantizing libraries write them.
    expert_gate: "experts.{}.gate_proj",
    expert_up: "experts.{}.up_proj",
    expert_down: "experts.{}.down_proj",
    experts_gate_up: "experts.gate_up_proj",
    experts_down: "experts.down_proj",
    shared_gate: "mlp.gate_proj",
    shared_up: "mlp.up_proj",
    shared_down: "mlp.down_proj",
    pre_experts_norm: "pre_feedforward_layernorm_2",
    post_experts_norm: "post_feedforward_layernorm_2",
    post_shared_norm: "post_feedforward_layernorm_1",
    ..HF_GEMMA_LAYER
});

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    hf.only("use_bidirectional_attention", "vision")?;
    let config = hf.llama("gemma4_text")?;
    let mut config = DecoderConfig {
        embedding_scale: (config.hidden_size as f64).sqrt() as f32,
        norms: NormPlacement::PreAndPost,
        activation: match hf.get("hidden_activation") {
            Some(_) => hf.activation("hidden_activation")?,
            None => Activation::GeluTanh,
        },
        tied_embeddings: hf.flag("tie_word_embeddings")?.unwrap_or(true),
        logits_softcap: hf.number("final_logit_softcapping")?.map(|cap| cap as f32),
        per_layer_width: hf.size("hidden_size_per_layer_input")?.filter(|width| *width > 0),
        has_layer_scalars: true,
        joins_pictures: hf.get("use_bidirectional_attention").is_some() && hf.model_type() == "gemma4",
        ..config
    };
    hf.size("vocab_size_per_layer_input")?;
    // One layer in six is full.
    hf.slide(&mut config, |layer_idx| !(layer_idx + 1).is_multiple_of(6))?;
    shape_heads(hf, &mut config)?;
    share_keys(hf, &mut config)?;
    place_experts(hf, &mut config)?;
    Ok(config)
}

/// Layers with a window and full layers have heads and rotary embeddings of their own.
fn shape_heads(hf: &HfConfig, config: &mut DecoderConfig) -> Result<(), ConfigError> {
    let full_dim = match hf.size("global_head_dim")? {
        Some(head_dim) => head_dim,
        None => hf.head_dim()?,
    };
    super::limits::check_head_dim(full_dim)?;
    let values_are_keys = hf.flag("attention_k_eq_v")?.unwrap_or(false);
    let n_kv_heads = hf.size("num_global_key_value_heads")?.filter(|_| values_are_keys);
    config.ropes = vec![hf.rope("sliding_attention", hf.head_dim()?)?, hf.rope("full_attention", full_dim)?];
    for attention in config.attentions_mut() {
        attention.scale = 1.0;
        attention.qk_norm = QkNorm::PerHead;
        attention.normalizes_values = true;
        if attention.sliding_window.is_none() {
            attention.head_dim = full_dim;
            attention.n_kv_heads = n_kv_heads.unwrap_or(attention.n_kv_heads);
            attention.values_are_keys = values_are_keys;
            attention.rope_idx = Some(1);
        }
    }
    Ok(())
}

/// The last layers read the keys and values of the last layer of their kind before them; their feed-forwards
/// may be twice as wide.
fn share_keys(hf: &HfConfig, config: &mut DecoderConfig) -> Result<(), ConfigError> {
    let n_layers = config.layers.len();
    let n_shared = hf.size("num_kv_shared_layers")?.unwrap_or(0);
    let is_wide = hf.flag("use_double_wide_mlp")?.unwrap_or(false);
    if n_shared >= n_layers {
        return Err(ConfigError::invalid("num_kv_shared_layers", n_shared, format!("below {n_layers}")));
    }
    let slides: Vec<bool> = config.attentions().map(|attention| attention.sliding_window.is_some()).collect();
    let (own, shared) = slides.split_at(n_layers - n_shared);
    for (slides, layer) in shared.iter().zip(config.layers.iter_mut().skip(own.len())) {
        let Some(source) = own.iter().rposition(|other| other == slides) else {
            return Err(ConfigError::invalid("num_kv_shared_layers", n_shared, "layers of each kind before"));
        };
        if let Some(attention) = layer.attention_mut() {
            attention.kv_layer_idx = Some(source);
        }
        if let FeedForward::Dense { width } = &mut layer.feed_forward
            && is_wide
        {
            *width = width.saturating_mul(2);
        }
    }
    Ok(())
}

fn place_experts(hf: &HfConfig, config: &mut DecoderConfig) -> Result<(), ConfigError> {
    let sizes = ["num_experts", "moe_intermediate_size", "top_k_experts"];
    if !hf.flag("enable_moe_block")?.unwrap_or(false) {
        return sizes.into_iter().try_for_each(|key| hf.size(key).map(drop));
    }
    let [n_experts, width, n_used] = sizes.map(|key| hf.required_size(key));
    let routing = Routing { has_expert_scales: true, ..Routing::softmax(n_used?, true) };
    let shared = Some(SharedExpert {
        width: hf.required_size("intermediate_size")?,
        is_gated: false,
        has_norms: true,
    });
    let feed_forward = FeedForward::Experts { n_experts: n_experts?, width: width?, routing, shared };
    config.layers.iter_mut().for_each(|layer| layer.feed_forward = feed_forward);
    Ok(())
}
