//! Reads the kind of pooling: `modules.json` and the folders it names, as sentence-transformers saves them,
//! or the classifier that `architectures` of a `config.json` names. Does not know tensors.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::LoadError;
use super::json_file::{malformed, read, read_object, shorten};
use crate::config::DecoderConfig;
use crate::pooling::{
    ClassifierActivation, HeadActivation, HeadLayer, Pooler, Pooling, PoolingConfig, PoolingOutput, Prompts,
};
use throng_checkpoint::TensorSource;
use throng_checkpoint::safetensors::SafetensorsFolder;

/// The longest prompt of a model.
const MAX_PROMPT_BYTES: usize = 4096;

/// Maximum number of modules of a model; real ones have at most five.
const MAX_MODULES: usize = 16;

/// The pooler of a model folder; `None` where the model generates text.
pub(super) fn of_folder(
    folder: &Path,
    config_json: &Map<String, Value>,
    config: &DecoderConfig,
) -> Result<Option<Pooler>, LoadError> {
    let architecture = config_json.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
    if architecture.is_some_and(|name| name.ends_with("ForSequenceClassification")) {
        return classifier(folder, config_json, config).map(Some);
    }
    let path = folder.join("modules.json");
    let Some(modules) = read(&path)? else {
        // As OpenAI's embeddings are; most encoders were trained for the mean.
        let plain = PoolingConfig {
            pooling: Pooling::Mean,
            normalizes: true,
            max_tokens: None,
            output: PoolingOutput::Embedding,
            prompts: prompts(folder)?,
        };
        let pooler = Pooler::new(plain, Vec::new());
        return Ok(config.encoder.is_some().then_some(pooler));
    };
    let modules: Vec<Map<String, Value>> =
        serde_json::from_slice(&modules).map_err(|error| malformed(&path, error.to_string()))?;
    if modules.len() > MAX_MODULES {
        return Err(malformed(
            &path,
            format!("has {} modules, at most {MAX_MODULES} are read", modules.len()),
        ));
    }
    embedder(folder, &path, &modules).map(Some)
}

/// The pooler that a list of modules describes.
fn embedder(folder: &Path, modules_path: &Path, modules: &[Map<String, Value>]) -> Result<Pooler, LoadError> {
    let max_tokens = max_tokens(folder)?;
    let (mut pooling, mut normalizes) = (None, false);
    let (mut layers, mut own_files) = (Vec::new(), Vec::new());
    for module in modules {
        let text = |key: &str| module.get(key).and_then(Value::as_str).unwrap_or_default();
        // Joined to the folder, the path must not lead out of it.
        let path = text("path");
        if Path::new(path).components().any(|part| !matches!(part, std::path::Component::Normal(_))) {
            return Err(malformed(modules_path, format!("the path {path:?} leads out of the folder")));
        }
        let own = folder.join(path);
        match text("type").rsplit('.').next().unwrap_or_default() {
            "Transformer" => {}
            "Pooling" => pooling = Some(pooling_of(&own)?),
            "Dense" => {
                layers.push(dense(&own)?);
                own_files.push(Some(Arc::new(SafetensorsFolder::open(&own)?) as Arc<dyn TensorSource>));
            }
            "Normalize" => normalizes = true,
            other => {
                let reason = format!("the module {other:?} is not supported");
                return Err(malformed(modules_path, reason));
            }
        }
    }
    let pooling = pooling.ok_or_else(|| malformed(modules_path, "there is no pooling".to_owned()))?;
    let output = PoolingOutput::Embedding;
    let prompts = prompts(folder)?;
    let config = PoolingConfig { pooling, normalizes, max_tokens, output, prompts };
    Ok(Pooler { config, layers, own_files })
}

/// The longest text by `sentence_bert_config.json`.
fn max_tokens(folder: &Path) -> Result<Option<usize>, LoadError> {
    let name = "sentence_bert_config.json";
    let fields = read_object(folder, name)?;
    let Some(length) = fields.get("max_seq_length").filter(|length| !length.is_null()) else {
        return Ok(None);
    };
    match length.as_u64().filter(|n| *n > 0) {
        Some(n) => Ok(Some(n as usize)),
        None => Err(malformed(&folder.join(name), "max_seq_length is not a number of tokens".to_owned())),
    }
}

/// The prompts of `config_sentence_transformers.json`.
fn prompts(folder: &Path) -> Result<Prompts, LoadError> {
    let name = "config_sentence_transformers.json";
    let fields = read_object(folder, name)?;
    let refused = |reason: String| malformed(&folder.join(name), reason);
    let mut by_name = BTreeMap::new();
    for (key, prompt) in fields.get("prompts").and_then(Value::as_object).into_iter().flatten() {
        let text = prompt.as_str().filter(|text| text.len() <= MAX_PROMPT_BYTES);
        let text = text.ok_or_else(|| refused(format!("the prompt {key:?} is not a short text")))?;
        by_name.insert(key.clone(), text.to_owned());
    }
    let default = fields.get("default_prompt_name").and_then(Value::as_str).map(str::to_owned);
    match default.as_ref().filter(|name| !by_name.contains_key(*name)) {
        None => Ok(Prompts { by_name, default }),
        Some(name) => Err(refused(format!("there is no prompt {name:?}, which is the default one"))),
    }
}

fn pooling_of(folder: &Path) -> Result<Pooling, LoadError> {
    let config = read_object(folder, "config.json")?;
    let path = folder.join("config.json");
    if config.get("include_prompt") == Some(&Value::Bool(false)) {
        return Err(malformed(&path, "pooling without the tokens of the prompt is not supported".to_owned()));
    }
    let named = config.get("pooling_mode").and_then(Value::as_str).map(str::to_owned);
    let flags =
        config.iter().filter(|(key, on)| key.starts_with("pooling_mode_") && **on == Value::Bool(true));
    let on: Vec<String> = named.into_iter().chain(flags.map(|(key, _)| key.clone())).collect();
    match on.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["pooling_mode_cls_token" | "cls"] => Ok(Pooling::First),
        ["pooling_mode_mean_tokens" | "mean"] => Ok(Pooling::Mean),
        ["pooling_mode_lasttoken" | "lasttoken"] => Ok(Pooling::Last),
        ref others => Err(malformed(
            &path,
            format!("the pooling {others:?} is not supported (one of cls, mean, lasttoken)"),
        )),
    }
}

fn dense(folder: &Path) -> Result<HeadLayer, LoadError> {
    let config = read_object(folder, "config.json")?;
    let function = config.get("activation_function").and_then(Value::as_str).unwrap_or_default();
    let activation = match function.rsplit('.').next().unwrap_or_default() {
        "Identity" | "" => HeadActivation::Identity,
        "Tanh" => HeadActivation::Tanh,
        other => {
            let reason = format!("the activation {other:?} is not supported (Identity, Tanh)");
            return Err(malformed(&folder.join("config.json"), reason));
        }
    };
    Ok(HeadLayer::new("linear", activation))
}

/// The pooler of a model with a classifier, by its family.
fn classifier(
    folder: &Path,
    config_json: &Map<String, Value>,
    config: &DecoderConfig,
) -> Result<Pooler, LoadError> {
    let linear = |name: &str| HeadLayer::new(name, HeadActivation::Identity);
    let path = folder.join("config.json");
    let mut pooling = Pooling::First;
    let layers = match config.family {
        "bert" | "gte" => vec![HeadLayer::new("pooler.dense", HeadActivation::Tanh), linear("classifier")],
        "deberta-v2" => {
            if let Some(other) = config_json.get("pooler_hidden_act").filter(|name| *name != "gelu") {
                let reason =
                    format!("the activation {} is not supported (gelu)", shorten(&other.to_string()));
                return Err(malformed(&path, reason));
            }
            vec![HeadLayer::new("pooler.dense", HeadActivation::Gelu), linear("classifier")]
        }
        "xlm-roberta" | "mpnet" => {
            vec![HeadLayer::new("classifier.dense", HeadActivation::Tanh), linear("classifier.out_proj")]
        }
        "modernbert" => {
            if config_json.get("classifier_pooling").and_then(Value::as_str) == Some("mean") {
                pooling = Pooling::Mean;
            }
            let dense = HeadLayer::new("head.dense", HeadActivation::Gelu);
            vec![HeadLayer { norm: Some("head.norm".to_owned()), ..dense }, linear("classifier")]
        }
        other if config.encoder.is_some() => {
            return Err(malformed(&path, format!("classifiers of the family {other} are not supported")));
        }
        _ => {
            pooling = Pooling::Last;
            vec![linear("score")]
        }
    };
    let names = labels(config_json);
    let is_multi =
        config_json.get("problem_type").and_then(Value::as_str) == Some("multi_label_classification");
    let activation = match cross_encoder_activation(folder, config_json)? {
        Some(own) => own,
        None if names.len() == 1 || is_multi => ClassifierActivation::Sigmoid,
        None => ClassifierActivation::Softmax,
    };
    let output = PoolingOutput::Labels { names, activation };
    let prompts = Prompts::default();
    let pooling = PoolingConfig { pooling, normalizes: false, max_tokens: None, output, prompts };
    Ok(Pooler::new(pooling, layers))
}

/// Activation of a cross-encoder's logits in sentence-transformers, if its file names one; older files have a
/// key of their own for it.
fn cross_encoder_activation(
    folder: &Path,
    config_json: &Map<String, Value>,
) -> Result<Option<ClassifierActivation>, LoadError> {
    let older = config_json.get("sbert_ce_default_activation_function");
    let newer = || config_json.get("sentence_transformers")?.get("activation_fn");
    let Some(class) = older.or_else(newer).and_then(Value::as_str) else { return Ok(None) };
    match class.rsplit('.').next().unwrap_or_default() {
        "Identity" => Ok(Some(ClassifierActivation::Identity)),
        "Sigmoid" => Ok(Some(ClassifierActivation::Sigmoid)),
        "Softmax" => Ok(Some(ClassifierActivation::Softmax)),
        _ => {
            let class = shorten(class);
            let reason = format!("the activation {class:?} is not supported (Identity, Sigmoid, Softmax)");
            Err(malformed(&folder.join("config.json"), reason))
        }
    }
}

/// The names of `id2label` in the order of their numbers; without it, the two default names of transformers.
fn labels(config_json: &Map<String, Value>) -> Vec<String> {
    let Some(by_id) = config_json.get("id2label").and_then(Value::as_object) else {
        let n = config_json.get("num_labels").and_then(Value::as_u64).unwrap_or(2).min(1 << 16);
        return (0..n).map(|i| format!("LABEL_{i}")).collect();
    };
    let mut labels: Vec<(u64, String)> = by_id
        .iter()
        .map(|(id, name)| (id.parse().unwrap_or(u64::MAX), name.as_str().unwrap_or(id).to_owned()))
        .collect();
    labels.sort();
    labels.into_iter().map(|(_, name)| name).collect()
}
