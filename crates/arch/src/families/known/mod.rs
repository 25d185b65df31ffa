//! Published repositories and whether they can be loaded, by their `config.json` files in `configs.jsonl`,
//! which `known/generate.py` writes from a collection: each has the file that it was taken from, at a commit
//! of a public repository. Reads no repository.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Architecture, ConfigError};
use crate::python_json;

const CONFIGS: &str = include_str!("configs.jsonl");

/// Degree of a model's support.
#[derive(Debug, Clone, PartialEq)]
pub enum Support {
    /// The whole model is supported.
    Whole,
    /// The text part is supported. Images are supported only with a known vision part; sounds never.
    TextOnly,
    /// Not supported, with the reason.
    None(ConfigError),
}

/// A published repository and its support.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownModel {
    /// Id of the model on the hub.
    pub repository: String,
    /// The file that its configuration was taken from.
    pub source: String,
    /// Degree of support.
    pub support: Support,
    /// Vision part of the model, if it has one.
    pub vision: Option<KnownVision>,
}

/// The vision part of a repository's model, by the names in its configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownVision {
    /// `model_type` of the model.
    pub model_type: String,
    /// `model_type` of the vision part, if the file has it.
    pub encoder_type: Option<String>,
}

#[derive(Deserialize)]
struct Entry {
    repository: String,
    source: String,
    config: Map<String, Value>,
}

/// The day on which the configurations were collected.
pub fn collected() -> String {
    #[derive(Deserialize)]
    struct Header {
        collected: String,
    }
    let first = CONFIGS.lines().next().and_then(|line| serde_json::from_str::<Header>(line).ok());
    first.expect("the file is part of the program").collected
}

/// The repositories, in the order of the file.
pub fn known_models() -> impl Iterator<Item = KnownModel> {
    let entry = |line: &'static str| -> Entry {
        python_json::from_slice(line.as_bytes()).expect("the file is part of the program")
    };
    CONFIGS.lines().skip(1).map(entry).map(|Entry { repository, source, config }| {
        let is_multimodal = ["text_config", "vision_config"].iter().any(|key| config.contains_key(*key));
        let vision = vision_of(&config);
        let support = match Architecture::from_config_json(Value::Object(config).to_string().as_bytes()) {
            Ok(_) if is_multimodal => Support::TextOnly,
            Ok(_) => Support::Whole,
            Err(error) => Support::None(error),
        };
        KnownModel { repository, source, support, vision }
    })
}

fn vision_of(config: &Map<String, Value>) -> Option<KnownVision> {
    let vision = config.get("vision_config")?.as_object()?;
    let model_type = config.get("model_type")?.as_str()?.to_owned();
    let encoder_type = vision.get("model_type").and_then(Value::as_str).map(str::to_owned);
    Some(KnownVision { model_type, encoder_type })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts that a refusal is because of a model's family, a variant of it or its format, and not because
    /// a key of its configuration is not read.
    #[test]
    fn the_most_used_models_are_supported_or_refused_by_family_or_format() {
        let models: Vec<KnownModel> = known_models().collect();
        assert!(models.len() >= 100, "{}", models.len());
        let support = |id: &str| &models.iter().find(|model| model.repository == id).expect("listed").support;
        assert_eq!(support("openai/gpt-oss-20b"), &Support::Whole);
        assert_eq!(support("google/gemma-3-27b-it"), &Support::TextOnly);
        for quantized in ["deepseek-ai/DeepSeek-R1", "moonshotai/Kimi-K2-Instruct", "MiniMaxAI/MiniMax-M2.5"]
        {
            assert_eq!(support(quantized), &Support::Whole);
        }
        assert_eq!(support("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4"), &Support::Whole);
        assert!(collected().starts_with("20"));
        for KnownModel { repository, source, support, .. } in &models {
            assert!(source.starts_with("https://github.com/"), "{repository}: {source}");
            let by_family_or_format = match support {
                Support::Whole | Support::TextOnly => true,
                Support::None(error) => matches!(
                    error,
                    ConfigError::NotSupported { .. }
                        | ConfigError::Quantized { .. }
                        | ConfigError::Variant { .. }
                ),
            };
            assert!(by_family_or_format, "{repository}: {support:?}");
        }
    }
}
