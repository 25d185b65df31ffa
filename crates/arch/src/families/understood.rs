//! Verdicts on the unread keys of a `config.json`. A key that transformers reads for this family, or that
//! changes results in any family (causality, caps, scales, multipliers, rotary embeddings, windows), refuses
//! the file, unless its value is the default or repeats that of another key. Any other key is ignored, and
//! named. Does not know the meaning of the read ones.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::read_keys::ReadKeys;

/// Keys that do not affect text generation: tokens of other files, training, precision of the checkpoint,
/// tensors whose presence has the same meaning, the division of layers among devices in transformers, and the
/// parts of multimodal models that are not text. `temperature` is a default of sampling, which older versions
/// of transformers wrote here too.
const WITHOUT_EFFECT: [&str; 64] = [
    "architectures",
    "attention_bias",
    "attention_dropout",
    "attention_out_bias",
    "attention_probs_dropout_prob",
    "audio_config",
    "auto_map",
    "base_model_ep_plan",
    "base_model_tp_plan",
    "chunk_size_feed_forward",
    "classifier_activation",
    "classifier_bias",
    "classifier_dropout",
    "classifier_pooling",
    "decoder_bias",
    "deterministic_flash_attn",
    "dtype",
    "embd_pdrop",
    "embedding_dropout",
    "gradient_checkpointing",
    "hidden_dropout",
    "hidden_dropout_prob",
    "id2label",
    "label2id",
    "layer_types",
    "mamba_ssm_dtype",
    "max_position_embeddings",
    "max_window_layers",
    "mlp_bias",
    "mlp_dropout",
    "mlp_intermediate_size",
    "model_type",
    "multimodal_projector_bias",
    "name_or_path",
    "num_labels",
    "num_logits_to_keep",
    "num_mtp_modules",
    "num_nextn_predict_layers",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_router_logits",
    "pretraining_tp",
    "problem_type",
    "resid_pdrop",
    "residual_dropout",
    "return_dict",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "router_jitter_noise",
    "sbert_ce_default_activation_function",
    "sentence_transformers",
    "shared_moe_mode",
    "sparse_pred_ignore_index",
    "spatial_merge_size",
    "temperature",
    "tokenizer_class",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "use_mtp",
    "vision_config",
    "vision_feature_layer",
];

/// The keys of rotary embeddings that are read at any depth.
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

/// Parts of keys that matter at any depth.
const MATTERS_EVERYWHERE: [&str; 18] = [
    "alibi",
    "attention_chunk",
    "bidirectional",
    "causal",
    "clamp",
    "clip",
    "limit",
    "logit_cap",
    "logits_cap",
    "multiplier",
    "rope_",
    "rotary",
    "scalar",
    "scale",
    "scaling",
    "softcap",
    "temperature",
    "window",
];
/// Beginnings of keys about images and sounds.
const NOT_TEXT: [&str; 7] = ["vision_", "image_", "audio_", "video_", "mm_", "projector_", "patch_"];
/// Beginnings of keys that are always ignored: notes of tools, and layers that predict further tokens.
const NOTES: [&str; 3] = ["_", "unsloth_", "mtp_"];

/// Verdicts on the unread keys.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Unread {
    /// First key that could change the computation, with its value.
    pub(super) refused: Option<(String, Value)>,
    /// Keys that do not change results, as far as is known.
    pub(super) passed_over: Vec<String>,
}

/// Judges the keys that are not among `read` by the keys that transformers reads of the family. Without that
/// list, every key could change results. Keys within the parameters of rotary embeddings are named with
/// those.
pub(super) fn judge(map: &Map<String, Value>, read: &BTreeSet<String>, list: Option<&ReadKeys>) -> Unread {
    let mut unread = Unread::default();
    let is_known = |key: &str| {
        read.contains(key) || WITHOUT_EFFECT.contains(&key) || is_beside_text(key) || is_note(key)
    };
    for (key, value) in map.iter().filter(|(key, _)| !is_known(key)) {
        let is_default = match list.and_then(|list| list.default_of(key)) {
            Some(default) => is_same(default, value) || (is_neutral(default) && is_neutral(value)),
            None => is_neutral(value),
        };
        // `null` says that there is no such thing, whatever there is by default: so it is computed where nothing reads the key.
        if is_default || value.is_null() || repeats_another(map, read, key, value) {
            continue;
        }
        let is_read_there = list.is_none_or(|list| list.has(key));
        if !is_read_there && is_factor_of_one(key, value) {
            continue;
        }
        if is_read_there || matters_everywhere(key) {
            unread.refused.get_or_insert_with(|| (key.clone(), value.clone()));
        } else {
            unread.passed_over.push(key.clone());
        }
    }
    if unread.refused.is_none() {
        unread.refused = ["rope_parameters", "rope_scaling"].into_iter().find_map(|key| {
            let (inner, value) = unknown_of_rope(map.get(key)?.as_object()?, read)?;
            Some((format!("{key}.{inner}"), value.clone()))
        });
    }
    unread
}

/// Whether the key could change the computation of any family.
fn matters_everywhere(key: &str) -> bool {
    MATTERS_EVERYWHERE.iter().any(|part| key.contains(part))
        && !NOT_TEXT.iter().any(|start| key.starts_with(start))
}

/// Whether a factor leaves the multiplied values unchanged. Attention's factor replaces a root, so 1 is not
/// its neutral value.
fn is_factor_of_one(key: &str, value: &Value) -> bool {
    (key.contains("multiplier") || key.contains("scal"))
        && !key.contains("att")
        && value.as_f64() == Some(1.0)
}

/// Whether a key that has been read has the same value under a name that contains this one or is contained in
/// it.
fn repeats_another(map: &Map<String, Value>, read: &BTreeSet<String>, key: &str, value: &Value) -> bool {
    let is_like = |other: &str| key.contains(other) || other.contains(key);
    read.iter().any(|other| is_like(other) && map.get(other).is_some_and(|found| is_same(found, value)))
}

/// Whether two values are the same, `1` and `1.0` too.
fn is_same(a: &Value, b: &Value) -> bool {
    a == b || a.as_f64().zip(b.as_f64()).is_some_and(|(a, b)| a == b)
}

fn is_note(key: &str) -> bool {
    NOTES.iter().any(|start| key.starts_with(start))
        || ["_loss_", "init"].iter().any(|part| key.contains(part))
        || key == "transformers.js_config"
}

/// One rotary embedding, or an object with one for each type of layer.
fn unknown_of_rope<'a>(
    rope: &'a Map<String, Value>,
    read: &BTreeSet<String>,
) -> Option<(&'a str, &'a Value)> {
    rope.iter().find_map(|(key, value)| match value {
        Value::Object(of_layers) => unknown_of_rope(of_layers, read),
        _ if is_neutral(value) || OF_ROPE.contains(&key.as_str()) || read.contains(key) || is_note(key) => {
            None
        }
        _ => Some((key.as_str(), value)),
    })
}

/// A special token's id, or a size of the projection from images and sounds to embeddings.
fn is_beside_text(key: &str) -> bool {
    let is_token = ["_token_id", "_token_ids", "_token_index"].iter().any(|end| key.ends_with(end));
    is_token || key.starts_with("projector_") || key == "out_hidden_size"
}

/// A value that means "none".
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

    fn judged(family: &str, json: &str) -> (Option<String>, Vec<String>) {
        let map: Map<String, Value> = serde_json::from_str(json).unwrap();
        let read = ["hidden_size", "sliding_window", "head_dim"].map(str::to_owned);
        let unread = judge(&map, &BTreeSet::from(read), ReadKeys::of(&[family]).as_ref());
        (unread.refused.map(|(key, _)| key), unread.passed_over)
    }

    #[test]
    fn a_key_that_transformers_reads_or_that_matters_everywhere_is_refused() {
        let refused = |family: &str, json: &str| judged(family, json).0;
        assert_eq!(refused("llama", r#"{"hidden_size": 8, "use_cache": true, "swiglu_limit": null}"#), None);
        assert_eq!(refused("gpt_oss", r#"{"swiglu_limit": 5.0}"#).as_deref(), Some("swiglu_limit"));
        assert_eq!(refused("none", r#"{"swiglu_limit": 5.0}"#).as_deref(), Some("swiglu_limit"));
        let everywhere = [
            ("is_causal", "true"),
            ("clip_qkv", "8.0"),
            ("logit_scale", "0.5"),
            ("embedding_multiplier", "12"),
            ("rope_interleave", "true"),
            ("attn_window_size", "64"),
            ("final_logit_softcap", "30.0"),
            ("attention_multiplier", "1.0"),
        ];
        for (key, value) in everywhere {
            let found = refused("llama", &format!(r#"{{"{key}": {value}}}"#));
            assert_eq!(found.as_deref(), Some(key));
        }
        let inner = r#"{"rope_parameters": {"full_attention": {"factor": 2, "new_beta": 0.1}}}"#;
        assert_eq!(refused("llama", inner).as_deref(), Some("rope_parameters.new_beta"));
        // Its default is true.
        assert_eq!(refused("llama4_text", r#"{"use_qk_norm": false}"#).as_deref(), Some("use_qk_norm"));
    }

    #[test]
    fn what_nothing_reads_is_passed_over_and_named() {
        let json = r#"{"output_gate_type": "swish", "vision_soft_tokens_per_image": 280, "spam": [1]}"#;
        let (refused, passed_over) = judged("qwen3_5_text", json);
        assert_eq!(refused, None);
        assert_eq!(passed_over, ["output_gate_type", "vision_soft_tokens_per_image", "spam"]);
    }

    #[test]
    fn defaults_repetitions_and_notes_are_not_asked_about() {
        let same = r#"{"sliding_window": 4096, "sliding_window_size": 4096, "head_dim": 128,
            "attention_head_dim": 128, "final_logit_softcapping": 30, "_attn_implementation_autoset": true,
            "unsloth_fixed": true, "aux_loss_alpha": 0.001, "layer_init_scale": 0.1, "mtp_scale": 2.0,
            "transformers.js_config": {"dtype": "q4"}, "logit_scale": 1.0}"#;
        assert_eq!(judged("gemma2", same), (None, Vec::new()));
        // By default Qwen 3 has a window, which its files say that they do not use.
        assert_eq!(
            judged("qwen3", r#"{"use_sliding_window": false, "swa_window": null}"#),
            (None, Vec::new())
        );
        let other = r#"{"sliding_window": 4096, "sliding_window_size": 512}"#;
        assert_eq!(judged("gemma2", other).0.as_deref(), Some("sliding_window_size"));
    }
}
