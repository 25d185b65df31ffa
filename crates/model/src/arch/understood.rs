//! Which keys of a `config.json` change what is computed: all that nothing has read, but those listed here. Does not know what the
//! read ones mean.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// Keys that text generation does not depend on: tokens of other files, training, precision of the checkpoint, tensors whose
/// presence says the same, how transformers splits layers among devices, and the parts of multimodal models that are not text.
const WITHOUT_EFFECT: [&str; 77] = [
    "_name_or_path",
    "architectures",
    "attention_bias",
    "attention_dropout",
    "attention_out_bias",
    "attention_probs_dropout_prob",
    "audio_config",
    "audio_token_id",
    "auto_map",
    "base_model_ep_plan",
    "base_model_tp_plan",
    "bos_token_id",
    "chunk_size_feed_forward",
    "classifier_activation",
    "classifier_bias",
    "classifier_dropout",
    "classifier_pooling",
    "decoder_bias",
    "dtype",
    "embd_pdrop",
    "embedding_dropout",
    "eos_token_id",
    "gradient_checkpointing",
    "hidden_dropout",
    "hidden_dropout_prob",
    "id2label",
    "image_token_id",
    "image_token_index",
    "initializer_cutoff_factor",
    "initializer_range",
    "label2id",
    "layer_types",
    "mamba_ssm_dtype",
    "max_position_embeddings",
    "max_window_layers",
    "mlp_bias",
    "mlp_dropout",
    "mlp_intermediate_size",
    "model_type",
    "mtp_num_hidden_layers",
    "mtp_transformer_layers",
    "mtp_use_dedicated_embeddings",
    "multimodal_projector_bias",
    "name_or_path",
    "num_mtp_modules",
    "num_nextn_predict_layers",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "problem_type",
    "projector_hidden_act",
    "resid_pdrop",
    "residual_dropout",
    "return_dict",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "sep_token_id",
    "shared_moe_mode",
    "sparse_pred_ignore_index",
    "spatial_merge_size",
    "tokenizer_class",
    "torch_dtype",
    "transformers_version",
    "unk_token_id",
    "use_cache",
    "use_mtp",
    "video_token_id",
    "vision_config",
    "vision_end_token_id",
    "vision_feature_layer",
    "vision_start_token_id",
];

/// The keys of rotary embeddings that are read wherever they stand.
const OF_ROPE: [&str; 20] = [
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "high_freq_factor",
    "long_factor",
    "long_mscale",
    "low_freq_factor",
    "mrope_interleaved",
    "mrope_section",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_theta",
    "rope_type",
    "short_factor",
    "short_mscale",
    "truncate",
    "type",
];

/// The first key, by name, that is neither among `read` nor known to have no effect, with its value. Keys within the parameters of
/// rotary embeddings are named with those.
pub(super) fn first_unknown<'a>(
    map: &'a Map<String, Value>,
    read: &BTreeSet<String>,
) -> Option<(String, &'a Value)> {
    let of_rope = ["rope_parameters", "rope_scaling"].into_iter().find_map(|key| {
        let (inner, value) = unknown_of_rope(map.get(key)?.as_object()?, read)?;
        Some((format!("{key}.{inner}"), value))
    });
    let is_known = |key: &str| read.contains(key) || WITHOUT_EFFECT.contains(&key) || is_beside_text(key);
    let mut unknown = map.iter().filter(|(key, value)| !is_known(key) && !is_neutral(value));
    unknown.next().map(|(key, value)| (key.clone(), value)).or(of_rope)
}

/// One rotary embedding, or an object with one for each type of layer.
fn unknown_of_rope<'a>(
    rope: &'a Map<String, Value>,
    read: &BTreeSet<String>,
) -> Option<(&'a str, &'a Value)> {
    rope.iter().find_map(|(key, value)| match value {
        Value::Object(of_layers) => unknown_of_rope(of_layers, read),
        _ if is_neutral(value) || OF_ROPE.contains(&key.as_str()) || read.contains(key) => None,
        _ => Some((key.as_str(), value)),
    })
}

/// A special token's id, or a size of what projects images and sounds to embeddings.
fn is_beside_text(key: &str) -> bool {
    let is_token = ["_token_id", "_token_ids", "_token_index"].iter().any(|end| key.ends_with(end));
    is_token || key.starts_with("projector_") || key == "out_hidden_size"
}

/// A value that says that there is nothing.
fn is_neutral(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unknown(json: &str) -> Option<String> {
        let map: Map<String, Value> = serde_json::from_str(json).unwrap();
        first_unknown(&map, &BTreeSet::from(["hidden_size".to_owned()])).map(|(key, _)| key)
    }

    #[test]
    fn a_key_that_nobody_read_is_named() {
        assert_eq!(unknown(r#"{"hidden_size": 8, "use_cache": true, "swiglu_limit": null}"#), None);
        assert_eq!(unknown(r#"{"hidden_size": 8, "swiglu_limit": 7.0}"#).as_deref(), Some("swiglu_limit"));
        let inner = r#"{"rope_parameters": {"full_attention": {"factor": 2, "new_beta": 0.1}}}"#;
        assert_eq!(unknown(inner).as_deref(), Some("rope_parameters.new_beta"));
    }
}
