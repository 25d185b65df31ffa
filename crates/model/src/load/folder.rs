//! Model folders as the hub has them: `config.json`, safetensors, and the files about text and sampling.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};
use throng_core::request::GenerationDefaults;

use super::json_file::{object, read, read_object};
use super::vocabulary::original_vocabulary;
use super::{LoadError, LoadedModel, VocabularySource, chat_templates, gguf_file, pooler, purpose, unnamed};
use crate::arch::{Architecture, ConfigError};
use throng_checkpoint::TensorSource;
use throng_checkpoint::quantized::{QuantizedFolder, Scheme};
use throng_checkpoint::safetensors::SafetensorsFolder;

pub(super) fn open(folder: &Path) -> Result<LoadedModel, LoadError> {
    if let Some(file) = purpose::gguf_inside(folder)? {
        return gguf_file::open(&file);
    }
    let config_json = read(&folder.join("config.json"))?.ok_or_else(|| LoadError::NotAModel {
        path: folder.to_owned(),
        reason: if folder.join("adapter_config.json").exists() {
            "the folder has an adapter: serve its model with --lora-modules NAME=PATH".to_owned()
        } else {
            "the folder has no config.json and no GGUF file".to_owned()
        },
    })?;
    let config = object(&folder.join("config.json"), Some(config_json.clone()))?;
    let (config, config_json) = with_modelopt(folder, config, config_json)?;
    let named = Architecture::from_config_json(&config_json);
    let (architecture, opened) = match named {
        Err(error @ ConfigError::NotSupported { .. }) if !config.contains_key("text_config") => {
            let Ok(tensors) = open_tensors(folder, &config) else { return Err(error.into()) };
            (unnamed::architecture(&config_json, &config, &*tensors)?, Some(tensors))
        }
        named => (named?, None),
    };
    let generation = read_object(folder, "generation_config.json")?;
    let tokenizer_config = read(&folder.join("tokenizer_config.json"))?;
    let chat_templates = chat_templates::of_folder(folder, tokenizer_config.as_deref())?;
    let vocabulary = match read(&folder.join("tokenizer.json"))? {
        Some(tokenizer_json) => VocabularySource::TokenizerJson { tokenizer_json, tokenizer_config },
        None => original_vocabulary(folder, tokenizer_config)?.unwrap_or(VocabularySource::None),
    };
    let text_config = config.get("text_config").and_then(Value::as_object);
    let sources = [Some(&generation), Some(&config), text_config];
    let mut eos_token_ids: Vec<u32> =
        sources.iter().flatten().flat_map(|source| ids(source.get("eos_token_id"))).collect();
    eos_token_ids.sort_unstable();
    eos_token_ids.dedup();
    let bos_token_id =
        sources.iter().flatten().find_map(|source| ids(source.get("bos_token_id")).first().copied());
    let full_path = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let name =
        full_path.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned());
    let tensors = opened.map_or_else(|| open_tensors(folder, &config), Ok)?;
    let pooler = pooler::of_folder(folder, &config, &architecture.config)?;
    purpose::check(folder, &config, &architecture, &*tensors, pooler.as_ref())?;
    Ok(LoadedModel {
        path: folder.to_owned(),
        name,
        config: Arc::new(architecture.config.clone()),
        vocabulary,
        chat_templates,
        generation_defaults: generation_defaults(&generation),
        eos_token_ids,
        bos_token_id,
        pooler,
        media: None,
        fingerprint: OnceLock::new(),
        architecture,
        own_part: None,
        tensors,
        unread_tensors: Vec::new(),
        quantize: None,
        cache: None,
        prepared: Default::default(),
    })
}

/// The `config.json` at a path, with the quantization of ModelOpt's file beside it.
///
/// # Errors
/// When it cannot be read or is no object.
pub fn configuration(path: &Path) -> Result<Map<String, Value>, LoadError> {
    let reason = || "there is no such configuration".to_owned();
    let json = read(path)?.ok_or_else(|| LoadError::NotAModel { path: path.to_owned(), reason: reason() })?;
    let config = object(path, Some(json.clone()))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    with_modelopt(folder, config, json).map(|(config, _)| config)
}

/// A configuration without quantization, with that of ModelOpt's `hf_quant_config.json` beside it.
fn with_modelopt(
    folder: &Path,
    mut config: Map<String, Value>,
    config_json: Vec<u8>,
) -> Result<(Map<String, Value>, Vec<u8>), LoadError> {
    let key = "quantization_config";
    let says =
        |config: &Map<String, Value>| config.contains_key(key) || config.contains_key("compression_config");
    let of_text = config.get("text_config").and_then(Value::as_object);
    if says(&config) || of_text.is_some_and(says) {
        return Ok((config, config_json));
    }
    let mut beside = read_object(folder, "hf_quant_config.json")?;
    let Some(quantization @ Value::Object(_)) = beside.remove("quantization") else {
        return Ok((config, config_json));
    };
    config.insert(key.to_owned(), quantization);
    let config_json = Value::Object(config.clone()).to_string().into_bytes();
    Ok((config, config_json))
}

/// The weights, decoded as they are read where they are stored quantized.
fn open_tensors(folder: &Path, config: &Map<String, Value>) -> Result<Arc<dyn TensorSource>, LoadError> {
    let scheme = Scheme::of_config(config).map_err(|error| LoadError::Malformed {
        path: folder.join("config.json"),
        reason: error.to_string(),
    })?;
    Ok(match scheme {
        None => Arc::new(SafetensorsFolder::open(folder)?),
        Some(scheme) => Arc::new(QuantizedFolder::new(SafetensorsFolder::open(folder)?, scheme)),
    })
}

/// An id or a list of ids.
fn ids(value: Option<&Value>) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Some(Value::Array(values)) => values.iter().filter_map(id).collect(),
        Some(value) => id(value).into_iter().collect(),
        None => Vec::new(),
    }
}

fn generation_defaults(generation: &Map<String, Value>) -> GenerationDefaults {
    let number = |key: &str| generation.get(key).and_then(Value::as_f64).map(|number| number as f32);
    let count = |key: &str| generation.get(key).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
    GenerationDefaults {
        temperature: number("temperature"),
        top_p: number("top_p"),
        top_k: count("top_k"),
        min_p: number("min_p"),
        repetition_penalty: number("repetition_penalty"),
        max_tokens: count("max_new_tokens"),
    }
}
