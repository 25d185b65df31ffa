//! DeepSeek V2, V3 and R1 (arXiv:2405.04434, arXiv:2412.19437), Kimi K2, GLM 4.7 Flash and Mistral Small 4:
//! latent attention, and experts chosen among those of the best groups. DeepSeek V3.2 (arXiv:2512.02556) and
//! GLM 5 also choose the positions that a token attends to. Layers that predict further tokens are not part
//! of the model.

use serde_json::Value;

use super::names::{GGUF, HF_LAYER, LayerNames, TensorNames, hf as hf_names};
use super::{ConfigError, Family, HfConfig, glm4_moe, without_gguf};
use crate::config::{
    DecoderConfig, FeedForward, IndexerConfig, LatentConfig, Mixer, RopeGrowth, RopeStyle, RopeTable,
    Routing, RoutingGroups,
};

pub(super) const FAMILY: Family = Family {
    model_type: "deepseek_v3",
    aliases: &["deepseek_v2", "kimi_k2", "glm4_moe_lite", "mistral4", "deepseek_v32", "glm_moe_dsa"],
    gguf_architectures: &[],
    from_hf,
    from_gguf: without_gguf,
    hf_names: &NAMES,
    gguf_names: &GGUF,
};

static NAMES: TensorNames = hf_names(LayerNames {
    shared_gate: "mlp.shared_experts.gate_proj",
    shared_up: "mlp.shared_experts.up_proj",
    shared_down: "mlp.shared_experts.down_proj",
    // Of Mistral Small 4.
    experts_gate_up: "mlp.experts.gate_up_proj",
    experts_down: "mlp.experts.down_proj",
    ..HF_LAYER
});

/// Epsilon in the norms of compressed vectors; the file's value is for the other norms.
const COMPRESSED_NORM_EPS: f32 = 1e-6;

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let is_paired = hf.flag("rope_interleave")?.unwrap_or(true);
    let rope_style = if is_paired { RopeStyle::Interleaved } else { RopeStyle::HalfSplit };
    let mut config = with_latents(hf, "deepseek_v3", (hf.required_size("v_head_dim")?, rope_style))?;
    place_indexers(hf, &mut config)?;
    place_experts(hf, &mut config)?;
    Ok(config)
}

/// A Llama with latent attention in all layers, with values of `value_dim` elements.
pub(super) fn with_latents(
    hf: &HfConfig,
    family: &'static str,
    (value_dim, rope_style): (usize, RopeStyle),
) -> Result<DecoderConfig, ConfigError> {
    let rope_dim = hf.required_size("qk_rope_head_dim")?;
    // Files name the rotated part, or nothing, as the size of a head.
    let hf = &hf.with_size("head_dim", rope_dim).with_size("rotary_dim", rope_dim);
    let mut config = hf.llama(family)?;
    let (nope_dim, factor) = (hf.required_size("qk_nope_head_dim")?, hf.yarn_score_factor()?);
    hf.size("qk_head_dim")?;
    let latent = LatentConfig {
        n_heads: hf.required_size("num_attention_heads")?,
        query_rank: hf.size("q_lora_rank")?,
        rank: hf.required_size("kv_lora_rank")?,
        nope_dim,
        rope_dim,
        value_dim,
        scale: (factor / ((nope_dim + rope_dim) as f64).sqrt()) as f32,
        norm_eps: COMPRESSED_NORM_EPS,
        rope_style,
        rope_idx: 0,
        growth_rope_idx: growth(hf, &mut config, nope_dim + rope_dim)?,
        indexer: None,
    };
    config.layers.iter_mut().for_each(|layer| layer.mixer = Mixer::Latent(latent));
    Ok(config)
}

/// Epsilon in the norm of an indexer's keys.
const INDEX_NORM_EPS: f32 = 1e-6;

/// Gives each layer of DeepSeek V3.2 and GLM 5 an indexer, or the choice of the layer before it. Source: the
/// modelling files of `deepseek_v32` and `glm_moe_dsa` in transformers.
fn place_indexers(hf: &HfConfig, config: &mut DecoderConfig) -> Result<(), ConfigError> {
    let is_glm = hf.model_type() == "glm_moe_dsa";
    if !is_glm && hf.model_type() != "deepseek_v32" {
        return Ok(());
    }
    // Its queries are made of the compressed ones.
    hf.required_size("q_lora_rank")?;
    hf.only("indexer_rope_interleave", if is_glm { "true" } else { "false" })?;
    let indexer = IndexerConfig {
        n_heads: hf.required_size("index_n_heads")?,
        head_dim: hf.required_size("index_head_dim")?,
        n_chosen: hf.required_size("index_topk")?,
        norm_eps: INDEX_NORM_EPS,
        rope_style: if is_glm { RopeStyle::Interleaved } else { RopeStyle::HalfSplit },
        cache_idx: None,
    };
    let n_layers = config.layers.len();
    let chooses = choosing_layers(hf, n_layers)?;
    let mut n_caches = 0;
    for (layer, chooses) in config.layers.iter_mut().zip(chooses) {
        if let Mixer::Latent(latent) = &mut layer.mixer {
            let cache_idx = chooses.then_some(n_layers + n_caches);
            n_caches += usize::from(chooses);
            latent.indexer = Some(IndexerConfig { cache_idx, ..indexer });
        }
    }
    Ok(())
}

/// Layers that choose positions; each of the others uses the choice of the layer before it.
fn choosing_layers(hf: &HfConfig, n_layers: usize) -> Result<Vec<bool>, ConfigError> {
    let of_list = |key: &str| {
        hf.get(key).and_then(Value::as_array).map(|list| {
            list.iter().take(n_layers).map(|kind| kind.as_str() == Some("full")).collect::<Vec<_>>()
        })
    };
    let of_letters = hf.get("index_topk_pattern").and_then(Value::as_str);
    let of_letters = of_letters.map(|letters| letters.bytes().take(n_layers).map(|l| l == b'F').collect());
    let frequency = hf.size("index_topk_freq")?.unwrap_or(1).max(1);
    let offset = hf.size("index_skip_topk_offset")?.unwrap_or(2);
    let by_frequency = |layer_idx: usize| (layer_idx + 1).saturating_sub(offset).is_multiple_of(frequency);
    let chooses: Vec<bool> =
        of_list("indexer_types").or(of_letters).unwrap_or_else(|| (0..n_layers).map(by_frequency).collect());
    if chooses.len() != n_layers || chooses.first() != Some(&true) {
        return Err(ConfigError::invalid(
            "indexer_types",
            chooses.len(),
            "a kind for each layer, the first full",
        ));
    }
    Ok(chooses)
}

/// Mistral Small 4 scales whole queries up with the position: by a rotary embedding with frequencies of 0.
fn growth(hf: &HfConfig, config: &mut DecoderConfig, head_dim: usize) -> Result<Option<usize>, ConfigError> {
    let number = |key| hf.rope_number("full_attention", key);
    let Some(beta) = number("llama_4_scaling_beta")? else { return Ok(None) };
    if !head_dim.is_multiple_of(2) {
        return Err(ConfigError::invalid("elements of a head that grows", head_dim, "an even number"));
    }
    let key = "original_max_position_embeddings";
    let interval = number(key)?.ok_or_else(|| ConfigError::Missing(format!("{key} of the rope scaling")))?;
    config.ropes.push(RopeTable {
        frequencies: vec![0.0; head_dim / 2],
        amplitude: 1.0,
        growth: Some(RopeGrowth { beta, interval, offset: 0.0 }),
        sections: Vec::new(),
        short: None,
    });
    Ok(Some(config.ropes.len() - 1))
}

fn place_experts(hf: &HfConfig, config: &mut DecoderConfig) -> Result<(), ConfigError> {
    // A model without experts names none.
    let Some(n_experts) = hf.size("n_routed_experts")? else { return Ok(()) };
    // Newer files of GLM 5 say the number twice.
    if let Some(other) = hf.size("num_experts")?.filter(|other| *other != n_experts) {
        return Err(ConfigError::invalid("num_experts", other, format!("{n_experts}, as n_routed_experts")));
    }
    hf.only("moe_layer_freq", "1")?;
    hf.only("ep_size", "1")?;
    hf.only("seq_aux", "true")?;
    let width = hf.required_size("moe_intermediate_size")?;
    let n_groups = hf.size("n_group")?.unwrap_or(1);
    let n_used_groups = hf.size("topk_group")?.unwrap_or(1);
    let is_v2 = hf.model_type() == "deepseek_v2";
    let mut routing = match hf.text_model_type().unwrap_or(hf.model_type()) {
        "deepseek_v2" => softmax_routing(hf)?,
        "mistral4" => normalized_softmax_routing(hf)?,
        _ => glm4_moe::routing(hf)?,
    };
    let method = hf.get("topk_method").and_then(Value::as_str);
    if n_groups > 1 && method != Some("greedy") {
        let n_summed = if is_v2 { 1 } else { 2 };
        routing.groups = Some(RoutingGroups { n_groups, n_used: n_used_groups, n_summed });
    }
    let n_shared = hf.size("n_shared_experts")?.unwrap_or(0);
    let shared = glm4_moe::shared(n_shared, width);
    let feed_forward = FeedForward::Experts { n_experts, width, routing, shared };
    let types = hf.get("mlp_layer_types").and_then(Value::as_array);
    let first_dense = hf.size("first_k_dense_replace")?.unwrap_or(0);
    let n_dense = match types {
        Some(types) => types.iter().take_while(|kind| kind.as_str() == Some("dense")).count(),
        None => first_dense,
    };
    if types.is_some_and(|types| types.iter().skip(n_dense).any(|kind| kind.as_str() != Some("sparse"))) {
        return Err(ConfigError::invalid("mlp_layer_types", "mixed", "dense layers, then sparse ones"));
    }
    config.layers.iter_mut().skip(n_dense).for_each(|layer| layer.feed_forward = feed_forward);
    Ok(())
}

/// Mistral Small 4 chooses by probabilities and scales those of the chosen experts to the sum 1.
fn normalized_softmax_routing(hf: &HfConfig) -> Result<Routing, ConfigError> {
    let normalize = hf.flag("norm_topk_prob")?.unwrap_or(true);
    let scale = hf.number("routed_scaling_factor")?.unwrap_or(1.0) as f32;
    Ok(Routing { scale, ..Routing::softmax(hf.required_size("num_experts_per_tok")?, normalize) })
}

/// Version 2 chooses by probabilities, which are not normalized.
fn softmax_routing(hf: &HfConfig) -> Result<Routing, ConfigError> {
    hf.only("scoring_func", "softmax")?;
    hf.only("norm_topk_prob", "false")?;
    let scale = hf.number("routed_scaling_factor")?.unwrap_or(1.0) as f32;
    Ok(Routing { scale, ..Routing::softmax(hf.required_size("num_experts_per_tok")?, false) })
}
