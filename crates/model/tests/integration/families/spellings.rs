//! A configuration with the keys of transformers 5 and the same with the older keys give the same model.

use std::path::Path;

use serde_json::{Map, Value, json};
use throng_model::arch::Architecture;

type Object = Map<String, Value>;

/// From `rope_theta`, `rope_scaling`, `sliding_window_pattern`, `torch_dtype`.
fn to_new(mut config: Object) -> Object {
    let theta = config.remove("rope_theta").unwrap_or(json!(10_000.0));
    let mut rope = match config.remove("rope_scaling") {
        Some(Value::Object(mut scaling)) => {
            let kind = scaling.remove("type").or_else(|| scaling.remove("rope_type")).unwrap();
            scaling.insert("rope_type".into(), kind);
            scaling
        }
        _ => json!({"rope_type": "default"}).as_object().unwrap().clone(),
    };
    rope.insert("rope_theta".into(), theta);
    if let Some(local) = config.remove("rope_local_base_freq") {
        let local = json!({"rope_type": "default", "rope_theta": local});
        let both = json!({"full_attention": rope, "sliding_attention": local});
        rope = both.as_object().unwrap().clone();
    }
    if let Some(pattern) = config.remove("sliding_window_pattern") {
        let n = config["num_hidden_layers"].as_u64().unwrap();
        let is_full = |layer| (layer + 1) % pattern.as_u64().unwrap() == 0;
        let kind = |layer| if is_full(layer) { "full_attention" } else { "sliding_attention" };
        config.insert("layer_types".into(), (0..n).map(kind).collect());
    }
    config.insert("rope_parameters".into(), rope.into());
    rename(config, "torch_dtype", "dtype")
}

/// From `rope_parameters`, `layer_types`, `dtype`.
fn to_old(mut config: Object) -> Object {
    let Some(Value::Object(mut rope)) = config.remove("rope_parameters") else { panic!("a new spelling") };
    // OLMo 3's windows have the same base, which the older spelling says once.
    if let Some(Value::Object(full)) = rope.remove("full_attention") {
        rope = full;
    }
    config.insert("rope_theta".into(), rope.remove("rope_theta").unwrap());
    if let Some(share) = rope.remove("partial_rotary_factor") {
        config.insert("partial_rotary_factor".into(), share);
    }
    let kind = rope.remove("rope_type").unwrap();
    let has_sections = rope.contains_key("mrope_section");
    let scaling = if kind == "default" && !has_sections { Value::Null } else { json!(rope) };
    config.insert("rope_scaling".into(), scaling);
    if config["rope_scaling"].is_object() {
        config["rope_scaling"]["type"] = kind;
    }
    config.remove("layer_types");
    rename(config, "dtype", "torch_dtype")
}

fn rename(mut config: Object, from: &str, to: &str) -> Object {
    if let Some(value) = config.remove(from) {
        config.insert(to.into(), value);
    }
    config
}

#[test]
fn both_spellings_mean_the_same() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let (mut n_new, mut n_old) = (0, 0);
    for entry in std::fs::read_dir(root).unwrap() {
        let Ok(json) = std::fs::read(entry.unwrap().path().join("config.json")) else { continue };
        let config: Object = serde_json::from_slice(&json).unwrap();
        let name = config["model_type"].clone();
        let read = |config: &Object| {
            let json = serde_json::to_vec(config).unwrap();
            Architecture::from_config_json(&json).unwrap_or_else(|error| panic!("{name}: {error}")).config
        };
        let as_written = read(&config);
        // Younger than the older spelling: its kinds of layers differ in more than their windows.
        let is_gemma4 = name.as_str().is_some_and(|name| name.starts_with("gemma4"));
        if is_gemma4 || config.contains_key("use_bidirectional_attention") {
            continue;
        }
        // A multimodal file has the dtype outside.
        let mut text = config.clone();
        if let Some(Value::Object(inner)) = text.remove("text_config") {
            text.extend(inner);
        }
        let mut other = if text.contains_key("rope_parameters") {
            n_new += 1;
            to_old(text)
        } else {
            n_old += 1;
            to_new(text)
        };
        if let Some(vision) = config.get("vision_config") {
            other = json!({"model_type": name, "vision_config": vision, "text_config": other})
                .as_object()
                .unwrap()
                .clone();
        }
        assert_eq!(read(&other), as_written, "{name}");
    }
    assert!(n_new >= 5 && n_old >= 5, "{n_new} new, {n_old} old");
}

/// Whether the text model is in an object of its own or not, it has one rotary position in text: only the
/// sections that images' positions use are added.
#[test]
fn text_parts_are_the_text_models() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let json = std::fs::read(root.join("qwen2/config.json")).unwrap();
    let plain: Object = serde_json::from_slice(&json).unwrap();
    let read = |config: &Value| Architecture::from_config_json(config.to_string().as_bytes()).unwrap().config;
    let (mut old, mut new) = (plain.clone(), plain.clone());
    old.insert("model_type".into(), json!("qwen2_vl"));
    old.insert("rope_scaling".into(), json!({"type": "mrope", "mrope_section": [2, 3, 3]}));
    new.insert("model_type".into(), json!("qwen2_5_vl_text"));
    let new = json!({"model_type": "qwen2_5_vl", "text_config": new, "vision_config": {"depth": 1}});
    for (config, sections) in [(json!(old), vec![0, 0, 1, 1, 1, 2, 2, 2]), (new, vec![])] {
        let mut read_config = read(&config);
        assert_eq!(std::mem::take(&mut read_config.ropes[0].sections), sections);
        assert_eq!(read_config, read(&json!(plain)));
    }
}

#[test]
fn seed_oss_is_a_llama_with_biases() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let json = std::fs::read(root.join("llama/config.json")).unwrap();
    let mut config: Object = serde_json::from_slice(&json).unwrap();
    let read = |config: &Object| {
        Architecture::from_config_json(json!(config).to_string().as_bytes()).unwrap().config
    };
    let mut llama = read(&config);
    llama.family = "seed_oss";
    config.insert("model_type".into(), json!("seed_oss"));
    assert_eq!(read(&config), llama);
}
