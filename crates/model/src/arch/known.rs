//! Which of the most used repositories can be loaded, by the shapes of their `config.json` in `known/configs.jsonl`: each is reduced to
//! the keys that say what is computed, from public model cards. Reads no repository.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Architecture, ConfigError};

const CONFIGS: &str = include_str!("known/configs.jsonl");

/// How much of a model is supported.
#[derive(Debug, Clone, PartialEq)]
pub enum Support {
    /// All of it.
    Whole,
    /// What it does with text, and not with images and sounds.
    TextOnly,
    /// Nothing, for this reason.
    None(ConfigError),
}

/// A repository.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownModel {
    /// Its id on the hub.
    pub repository: String,
    /// How much of it is supported.
    pub support: Support,
}

#[derive(Deserialize)]
struct Entry {
    repository: String,
    config: Map<String, Value>,
}

/// The repositories, in the order of the file.
pub fn known_models() -> impl Iterator<Item = KnownModel> {
    let entry = |line: &'static str| -> Entry {
        serde_json::from_str(line).expect("the file is part of the program")
    };
    CONFIGS.lines().map(entry).map(|Entry { repository, config }| {
        let is_multimodal = ["text_config", "vision_config"].iter().any(|key| config.contains_key(*key));
        let support = match Architecture::from_config_json(Value::Object(config).to_string().as_bytes()) {
            Ok(_) if is_multimodal => Support::TextOnly,
            Ok(_) => Support::Whole,
            Err(error) => Support::None(error),
        };
        KnownModel { repository, support }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is refused is refused because of its family, a variant of it or its format, and not because a key of its configuration is not read.
    #[test]
    fn the_most_used_models_are_supported_or_refused_by_family_or_format() {
        let models: Vec<KnownModel> = known_models().collect();
        assert!(models.len() >= 60, "{}", models.len());
        let support = |id: &str| &models.iter().find(|model| model.repository == id).expect("listed").support;
        assert_eq!(support("openai/gpt-oss-20b"), &Support::Whole);
        assert_eq!(support("google/gemma-3-27b-it"), &Support::TextOnly);
        for quantized in ["deepseek-ai/DeepSeek-R1", "zai-org/GLM-4.6-FP8", "MiniMaxAI/MiniMax-M2"] {
            assert_eq!(support(quantized), &Support::Whole);
        }
        for KnownModel { repository, support } in &models {
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
