//! A decoder whose `model_type` has no file here: Llama with the variations that its tensors and its
//! configuration show, and nothing else. Settings that these do not show (gains stored as gain − 1, heads
//! rotated in pairs) are assumed to be Llama's.

use serde_json::Value;

use super::limits;
use super::names::{HF_LAYER, LayerNames, TensorNames, hf as hf_names};
use super::{Architecture, ConfigError, HfConfig};
use crate::config::{DecoderConfig, FeedForward, QkNorm, Routing};
use throng_checkpoint::TensorSource;

/// Name of a model without a family, in place of the family.
pub const FAMILY: &str = "unnamed";

/// Llama's names without those of other families, so that a tensor that no operation reads is found.
static NAMES: TensorNames = hf_names(LayerNames {
    query_key_value: "",
    attention_gate: "",
    query_compression: "",
    query_compression_norm: "",
    query_expansion: "",
    key_value_compression: "",
    key_value_compression_norm: "",
    key_value_expansion: "",
    sinks: "",
    gate_up: "",
    shared_router: "",
    shared_gate: "",
    shared_up: "",
    shared_down: "",
    per_layer_gate: "",
    per_layer_projection: "",
    per_layer_post_norm: "",
    scalar: "",
    ..HF_LAYER
});

/// The architecture of a model without a family.
///
/// # Errors
/// An error that names the first key or value that is not understood.
pub(super) fn architecture(hf: &HfConfig, tensors: &dyn TensorSource) -> Result<Architecture, ConfigError> {
    hf.check_quantization()?;
    let mut config = hf.llama(FAMILY)?;
    check_said(hf)?;
    windows(hf, &mut config)?;
    let qk_norm = head_norms(&config, tensors)?;
    config = config.with_attention(|attention| attention.qk_norm = qk_norm);
    experts(hf, &mut config, tensors)?;
    hf.check_understood(None)?;
    limits::check(&config)?;
    Ok(Architecture { config, names: &NAMES, unread_keys: Vec::new() })
}

/// Refuses a file that lacks a setting which differs between families.
fn check_said(hf: &HfConfig) -> Result<(), ConfigError> {
    let missing = |key: &str| Err(ConfigError::Missing(key.to_owned()));
    if let Some(key) = ["rms_norm_eps", "hidden_act"].into_iter().find(|key| hf.get(key).is_none()) {
        return missing(key);
    }
    if hf.rope_number("full_attention", "rope_theta")?.is_none() {
        return missing("rope_theta");
    }
    for key in ["rope_parameters", "rope_scaling"] {
        let parameters = hf.get(key).and_then(Value::as_object);
        if let Some((layers, _)) = parameters.into_iter().flatten().find(|(_, value)| value.is_object()) {
            return Err(ConfigError::Variant {
                key: format!("{key}.{}", super::shorten(layers)),
                found: "a rotary embedding of its own".to_owned(),
                expected: "one for all layers",
            });
        }
    }
    Ok(())
}

/// The windows that `layer_types` names. Without it, `sliding_window` is accepted only if it is off.
fn windows(hf: &HfConfig, config: &mut DecoderConfig) -> Result<(), ConfigError> {
    let is_off = hf.flag("use_sliding_window")? == Some(false);
    match hf.get("layer_types").and_then(Value::as_array) {
        Some(types) => {
            let is = |value: &Value, kind: &str| value.as_str() == Some(kind);
            let known = |value: &Value| is(value, "full_attention") || is(value, "sliding_attention");
            if let Some(other) = types.iter().find(|value| !known(value)) {
                return Err(ConfigError::invalid(
                    "layer_types",
                    other,
                    "full_attention or sliding_attention",
                ));
            }
            if types.iter().any(|value| is(value, "sliding_attention")) {
                hf.required_size("sliding_window")?;
            }
            hf.slide(config, |_| false)
        }
        None => {
            if is_off {
                hf.size("sliding_window")?;
            }
            Ok(())
        }
    }
}

/// Norms of queries and keys, by the tensors of the first layer.
fn head_norms(config: &DecoderConfig, tensors: &dyn TensorSource) -> Result<QkNorm, ConfigError> {
    let name = format!("{}0.{}.weight", NAMES.layer_prefix, NAMES.layer.query_norm);
    let (Some(norm), Some(attention)) = (tensors.tensor(&name), config.attentions().next()) else {
        return Ok(QkNorm::None);
    };
    match *norm.shape {
        [width] if width == attention.head_dim => Ok(QkNorm::PerHead),
        [width] if width == attention.query_width() => Ok(QkNorm::WholeWidth),
        _ => Err(ConfigError::invalid(
            name,
            format!("{:?}", norm.shape),
            "one gain for a head or for all heads",
        )),
    }
}

/// Experts in the layers that have a router.
fn experts(hf: &HfConfig, config: &mut DecoderConfig, tensors: &dyn TensorSource) -> Result<(), ConfigError> {
    let has = |layer_idx: usize, name: &str| {
        let name = format!("{}{layer_idx}.{name}", NAMES.layer_prefix);
        tensors.tensor(&name).is_some() || tensors.has_encoded(&name)
    };
    let router = format!("{}.weight", NAMES.layer.router);
    let routed: Vec<usize> = (0..config.layers.len()).filter(|layer| has(*layer, &router)).collect();
    let Some(&first) = routed.first() else { return Ok(()) };
    let mut n_experts = None;
    for key in ["num_experts", "num_local_experts", "n_routed_experts"] {
        n_experts = n_experts.or(hf.size(key)?);
    }
    let is_biased = has(first, NAMES.layer.router_bias);
    let n_used = hf.required_size("num_experts_per_tok")?;
    let score = hf.get("scoring_func").map(|value| value.as_str().unwrap_or_default());
    let routing = match score {
        Some("sigmoid") => Routing::sigmoid(n_used, is_biased),
        Some("softmax") => Routing { is_biased, ..Routing::softmax(n_used, false) },
        None if !is_biased => Routing::softmax(n_used, false),
        None => return Err(ConfigError::Missing("scoring_func".to_owned())),
        Some(other) => return Err(ConfigError::invalid("scoring_func", other, "softmax or sigmoid")),
    };
    let normalize = hf.flag("norm_topk_prob")?;
    let routing = Routing {
        normalize: normalize.ok_or_else(|| ConfigError::Missing("norm_topk_prob".to_owned()))?,
        scale: hf.number("routed_scaling_factor")?.unwrap_or(1.0) as f32,
        ..routing
    };
    let n_experts = n_experts.ok_or_else(|| ConfigError::Missing("num_experts".to_owned()))?;
    let width = hf.required_size("moe_intermediate_size")?;
    let feed_forward = FeedForward::Experts { n_experts, width, routing, shared: None };
    routed.iter().for_each(|layer_idx| config.layers[*layer_idx].feed_forward = feed_forward);
    // Which layers these keys name is known by their routers.
    for key in ["decoder_sparse_step", "mlp_only_layers", "first_k_dense_replace", "moe_layer_freq"] {
        hf.get(key);
    }
    hf.only("n_group", "1")?;
    hf.only("topk_group", "1")
}
