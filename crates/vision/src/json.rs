//! Typed reads of a `config.json`. Does not know families.

use serde_json::{Map, Value};
use throng_model::arch::ConfigError;
use throng_model::shapes::Activation;

use crate::config::EncoderActivation;

/// Largest size that is accepted: products of three such sizes do not overflow.
const MAX_SIZE: u64 = 1 << 20;

/// The vision part of a configuration, and the whole configuration.
#[derive(Debug, Clone, Copy)]
pub struct VisionJson<'a> {
    /// The member `vision_config`.
    pub vision: &'a Map<String, Value>,
    /// The whole file.
    pub model: &'a Map<String, Value>,
    /// Width of the decoder's residual stream.
    pub text_width: usize,
}

impl VisionJson<'_> {
    /// A size of `vision_config`, of a square its side.
    pub fn size(&self, key: &str, default: Option<usize>) -> Result<usize, ConfigError> {
        size_of(self.vision, key)?.or(default).ok_or_else(|| missing(key))
    }

    /// A size of the file.
    pub fn model_size(&self, key: &str, default: Option<usize>) -> Result<usize, ConfigError> {
        size_of(self.model, key)?.or(default).ok_or_else(|| missing(key))
    }

    /// A number of the part of the file about text.
    pub fn text_number(&self, key: &str, default: f64) -> Result<f64, ConfigError> {
        let text = self.model.get("text_config").and_then(Value::as_object).unwrap_or(self.model);
        match get(text, key) {
            None => Ok(default),
            Some(value) => value.as_f64().ok_or_else(|| invalid(key, value, "a number")),
        }
    }

    /// A number of `vision_config`.
    pub fn number(&self, key: &str, default: f64) -> Result<f64, ConfigError> {
        match get(self.vision, key) {
            None => Ok(default),
            Some(value) => value.as_f64().ok_or_else(|| invalid(key, value, "a number")),
        }
    }

    /// A list of sizes of `vision_config`.
    pub fn sizes(&self, key: &str) -> Result<Vec<usize>, ConfigError> {
        let Some(value) = get(self.vision, key) else { return Ok(Vec::new()) };
        let size = |value: &Value| value.as_u64().filter(|&n| n <= MAX_SIZE).map(|n| n as usize);
        let sizes = value.as_array().and_then(|list| list.iter().map(size).collect::<Option<Vec<_>>>());
        sizes.ok_or_else(|| invalid(key, value, "a list of sizes"))
    }

    /// Refuses a value of `vision_config` other than `only`, which it may leave out.
    pub fn only(&self, key: &str, only: &'static str) -> Result<(), ConfigError> {
        let is = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned) == only;
        match get(self.vision, key).filter(|value| !is(value)) {
            None => Ok(()),
            Some(other) => Err(ConfigError::Variant {
                key: format!("vision_config.{key}"),
                found: other.to_string().chars().take(80).collect(),
                expected: only,
            }),
        }
    }

    /// The activation of feed-forward networks.
    pub fn activation(
        &self,
        key: &str,
        default: EncoderActivation,
    ) -> Result<EncoderActivation, ConfigError> {
        let Some(value) = get(self.vision, key) else { return Ok(default) };
        match value.as_str() {
            Some("gelu_pytorch_tanh" | "gelu_new") => Ok(EncoderActivation::Plain(Activation::GeluTanh)),
            Some("gelu") => Ok(EncoderActivation::Plain(Activation::Gelu)),
            Some("silu" | "swish") => Ok(EncoderActivation::Plain(Activation::Silu)),
            Some("quick_gelu") => Ok(EncoderActivation::QuickGelu),
            _ => Err(invalid(key, value, "gelu, gelu_pytorch_tanh, quick_gelu, silu")),
        }
    }
}

fn get<'a>(map: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    map.get(key).filter(|value| !value.is_null())
}

fn size_of(map: &Map<String, Value>, key: &str) -> Result<Option<usize>, ConfigError> {
    let Some(value) = get(map, key) else { return Ok(None) };
    let side = match value {
        Value::Array(sides) => sides.first().filter(|first| sides.iter().all(|side| side == *first)),
        other => Some(other),
    };
    let size = side.and_then(Value::as_u64).filter(|&n| n > 0 && n <= MAX_SIZE);
    size.map(|n| Some(n as usize)).ok_or_else(|| invalid(key, value, "a size"))
}

fn missing(key: &str) -> ConfigError {
    ConfigError::Missing(format!("vision_config.{key}"))
}

/// An error about a value of `vision_config`.
pub fn invalid(key: &str, value: &impl ToString, expected: &str) -> ConfigError {
    ConfigError::Invalid {
        key: format!("vision_config.{key}"),
        found: value.to_string().chars().take(80).collect(),
        expected: expected.to_owned(),
    }
}
