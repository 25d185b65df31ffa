//! Reads `config.json` in both spellings: that of transformers 5 (`rope_parameters`, `layer_types`, `dtype`)
//! and the older one (`rope_theta`, `rope_scaling`, `sliding_window_pattern`, `torch_dtype`). Does not know
//! families.

mod rope;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use serde_json::{Map, Value};

use super::ConfigError;
use super::limits::{check_head_dim, check_n_layers};
use super::read_keys::ReadKeys;
use super::rope_scaling::RopeScaling;
use super::understood;
use crate::config::{Activation, AttentionConfig, DecoderConfig, FeedForward, LayerConfig, Mixer, RopeTable};
use crate::python_json;
use rope::RopeSource;
pub(super) use rope::mrope_sections;
use throng_checkpoint::quantized::Scheme;

/// A parsed `config.json`; of a multimodal one the part about text.
#[derive(Debug)]
pub struct HfConfig {
    model_type: String,
    text_model_type: Option<String>,
    map: Map<String, Value>,
    /// The keys that have been read.
    read: Rc<RefCell<BTreeSet<String>>>,
}

impl HfConfig {
    /// Parses the file.
    ///
    /// # Errors
    /// When it is not a JSON object or does not say its `model_type`.
    pub fn parse(json: &[u8]) -> Result<Self, ConfigError> {
        let mut map: Map<String, Value> =
            python_json::from_slice(json).map_err(|error| ConfigError::Json(error.to_string()))?;
        let model_type = map.get("model_type").and_then(Value::as_str).map(str::to_owned);
        let model_type = model_type.ok_or_else(|| ConfigError::Missing("model_type".to_owned()))?;
        let mut text_model_type = None;
        if let Some(Value::Object(text)) = map.remove("text_config") {
            text_model_type = text.get("model_type").and_then(Value::as_str).map(str::to_owned);
            // The outer object has what the inner one leaves out (end tokens, tied embeddings).
            map.extend(text);
        }
        Ok(Self { model_type, text_model_type, map, read: Rc::default() })
    }

    /// Copies the configuration and adds these sizes if the file omits them: transformers does not write the
    /// sizes of a nested configuration that are its class's defaults.
    pub(super) fn with_defaults(&self, defaults: &[(&str, usize)]) -> Self {
        let mut map = self.map.clone();
        for (key, size) in defaults {
            map.entry(*key).or_insert_with(|| Value::from(*size));
        }
        self.with_map(map)
    }

    /// Copies the configuration with this size in place of the file's.
    pub(super) fn with_size(&self, key: &str, size: usize) -> Self {
        let mut map = self.map.clone();
        map.insert(key.to_owned(), Value::from(size));
        self.with_map(map)
    }

    /// Copies the configuration with this share of each head rotated, unless the file has one.
    pub(super) fn with_rotated_share(&self, share: f64) -> Self {
        let mut map = self.map.clone();
        map.entry("partial_rotary_factor").or_insert_with(|| Value::from(share));
        self.with_map(map)
    }

    fn with_map(&self, map: Map<String, Value>) -> Self {
        Self {
            model_type: self.model_type.clone(),
            text_model_type: self.text_model_type.clone(),
            map,
            read: Rc::clone(&self.read),
        }
    }

    /// The architecture that the file names.
    pub fn model_type(&self) -> &str {
        &self.model_type
    }

    /// The architecture that the part about text names, in a multimodal file.
    pub(super) fn text_model_type(&self) -> Option<&str> {
        self.text_model_type.as_deref()
    }

    /// Refuses an unread key that could change results, judged by the keys that transformers reads of the
    /// family; returns the names of the others. Called when everything has been read.
    pub(super) fn check_understood(&self, list: Option<&ReadKeys>) -> Result<Vec<String>, ConfigError> {
        let unread = understood::judge(&self.map, &self.read.borrow(), list);
        match unread.refused {
            None => Ok(unread.passed_over),
            Some((key, value)) => Err(ConfigError::Unknown {
                model_type: super::shorten(&self.model_type),
                key: super::shorten(&key),
                found: super::shorten(&value.to_string()),
            }),
        }
    }

    /// Refuses a model whose weights are quantized in an unknown way.
    pub(super) fn check_quantization(&self) -> Result<(), ConfigError> {
        let key = Scheme::KEYS.into_iter().find(|key| self.get(key).is_some());
        let refused = |found: String| {
            let key = key.unwrap_or("quantization_config");
            ConfigError::Quantized { found: format!("{} (by {key} in config.json)", super::shorten(&found)) }
        };
        // Experts of this family are bytes that the loader puts together.
        let method = key.and_then(|key| self.get(key)?.get("quant_method")?.as_str());
        if method == Some("mxfp4") && self.model_type != "gpt_oss" {
            return Err(refused("MXFP4".to_owned()));
        }
        Scheme::of_config(&self.map).map(drop).map_err(|error| refused(error.to_string()))
    }

    /// The value of `key`; `None` if absent or null.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let value = self.map.get(key).filter(|value| !value.is_null())?;
        self.read.borrow_mut().insert(key.to_owned());
        Some(value)
    }

    /// A size, if it is there.
    pub(super) fn size(&self, key: &str) -> Result<Option<usize>, ConfigError> {
        self.typed(key, "a size", |value| value.as_u64().and_then(|n| usize::try_from(n).ok()))
    }

    /// A size that must be there.
    pub(super) fn required_size(&self, key: &str) -> Result<usize, ConfigError> {
        self.size(key)?.ok_or_else(|| ConfigError::Missing(key.to_owned()))
    }

    /// A number, if it is there.
    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        self.typed(key, "a number", python_json::number)
    }

    /// A boolean, if it is there.
    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, ConfigError> {
        self.typed(key, "true or false", Value::as_bool)
    }

    /// The list of sizes under `key`; `None` if absent.
    pub(super) fn sizes(&self, key: &str) -> Result<Option<Vec<usize>>, ConfigError> {
        self.typed(key, "a list of sizes", |value| {
            value.as_array()?.iter().map(|v| v.as_u64().and_then(|n| usize::try_from(n).ok())).collect()
        })
    }

    /// The list of numbers under `key`; `None` if absent.
    pub(super) fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>, ConfigError> {
        self.typed(key, "a list of numbers", |value| {
            value.as_array()?.iter().map(python_json::number).collect()
        })
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| ConfigError::invalid(key, value, expected))
    }

    /// A Llama with the sizes of this file, from which every family starts.
    ///
    /// # Errors
    /// A missing key, or a key with an invalid value.
    pub fn llama(&self, family: &'static str) -> Result<DecoderConfig, ConfigError> {
        let hidden_size = self.required_size("hidden_size")?;
        let n_heads = self.required_size("num_attention_heads")?;
        let head_dim = self.head_dim()?;
        let n_layers = self.required_size("num_hidden_layers")?;
        check_n_layers(n_layers)?;
        let width = self.required_size("intermediate_size")?;
        let n_kv_heads = self.size("num_key_value_heads")?.unwrap_or(n_heads);
        let layer = LayerConfig {
            mixer: Mixer::Attention(AttentionConfig::llama(n_heads, n_kv_heads, head_dim)),
            feed_forward: FeedForward::Dense { width },
        };
        let norm_eps = self.number("rms_norm_eps")?.unwrap_or(1e-6) as f32;
        let max_sequence_tokens = self.size("max_position_embeddings")?.unwrap_or(2048);
        Ok(DecoderConfig {
            vocabulary_size: self.required_size("vocab_size")?,
            hidden_size,
            max_sequence_tokens,
            activation: self.activation("hidden_act")?,
            ropes: vec![self.rope("full_attention", head_dim)?],
            tied_embeddings: self.flag("tie_word_embeddings")?.unwrap_or(false),
            layers: vec![layer; n_layers],
            ..DecoderConfig::llama(family, norm_eps)
        })
    }

    /// Elements of a head.
    pub(super) fn head_dim(&self) -> Result<usize, ConfigError> {
        let head_dim = match self.size("head_dim")? {
            Some(head_dim) => head_dim,
            None => {
                let n_heads = self.required_size("num_attention_heads")?;
                self.required_size("hidden_size")?.checked_div(n_heads).unwrap_or(0)
            }
        };
        check_head_dim(head_dim)?;
        Ok(head_dim)
    }

    /// The activation under `key`; SiLU when absent.
    pub(super) fn activation(&self, key: &str) -> Result<Activation, ConfigError> {
        match self.get(key).map(|value| value.as_str().unwrap_or_default()) {
            None | Some("silu" | "swish") => Ok(Activation::Silu),
            Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Activation::GeluTanh),
            Some("gelu") => Ok(Activation::Gelu),
            Some(other) => Err(ConfigError::Variant {
                key: key.to_owned(),
                found: super::shorten(other),
                expected: "silu, gelu, gelu_pytorch_tanh",
            }),
        }
    }

    /// Sets `sliding_window` on the layers that `layer_types` names or, without it, on those that
    /// `by_default` picks.
    pub(super) fn slide(
        &self,
        config: &mut DecoderConfig,
        by_default: impl Fn(usize) -> bool,
    ) -> Result<(), ConfigError> {
        let Some(window) = self.size("sliding_window")? else { return Ok(()) };
        let types = self.get("layer_types").and_then(Value::as_array);
        for (layer_idx, layer) in config.layers.iter_mut().enumerate() {
            let slides = match types {
                None => by_default(layer_idx),
                Some(types) => match types.get(layer_idx).and_then(Value::as_str) {
                    Some("sliding_attention") => true,
                    Some("full_attention") => false,
                    other => {
                        let found = other.unwrap_or("nothing");
                        let key = format!("layer_types[{layer_idx}]");
                        return Err(ConfigError::invalid(key, found, "sliding_attention or full_attention"));
                    }
                },
            };
            if let Some(attention) = layer.attention_mut() {
                attention.sliding_window = slides.then_some(window);
            }
        }
        Ok(())
    }

    /// The rotary embedding of layers of a type. `rope_parameters` may hold one for all layers or one for
    /// each type.
    pub(super) fn rope(&self, layer_type: &str, head_dim: usize) -> Result<RopeTable, ConfigError> {
        let source = self.rope_source(layer_type);
        self.rope_with(&source, self.rope_theta(layer_type)?, head_dim)
    }

    /// The base of the frequencies of layers of a type.
    pub(super) fn rope_theta(&self, layer_type: &str) -> Result<f64, ConfigError> {
        Ok(self.rope_source(layer_type).number("rope_theta")?.unwrap_or(10_000.0))
    }

    /// Factor of latent attention's scores by YaRN.
    pub(super) fn yarn_score_factor(&self) -> Result<f64, ConfigError> {
        self.rope_source("full_attention").score_factor()
    }

    /// A parameter of the rotary embedding of layers of a type.
    pub(super) fn rope_number(&self, layer_type: &str, key: &str) -> Result<Option<f64>, ConfigError> {
        self.rope_source(layer_type).number(key)
    }

    /// Refuses a value other than `only`, which a file may leave out.
    pub(super) fn only(&self, key: &str, only: &'static str) -> Result<(), ConfigError> {
        let is = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned) == only;
        match self.get(key).filter(|value| !is(value)) {
            None => Ok(()),
            Some(other) => Err(ConfigError::Variant {
                key: key.to_owned(),
                found: super::shorten(&other.to_string()),
                expected: only,
            }),
        }
    }

    fn rope_source(&self, layer_type: &str) -> RopeSource<'_> {
        let parameters = self.get("rope_parameters").or_else(|| self.get("rope_scaling"));
        let parameters = parameters.and_then(Value::as_object);
        let own = parameters.and_then(|p| p.get(layer_type)).and_then(Value::as_object);
        RopeSource { config: self, parameters: own.or(parameters) }
    }

    /// An unscaled rotary embedding.
    pub(super) fn plain_rope(theta: f64, head_dim: usize) -> Result<RopeTable, ConfigError> {
        RopeScaling::None
            .table(theta, head_dim)
            .ok_or_else(|| ConfigError::Missing("rope factors".to_owned()))
    }

    fn rope_with(
        &self,
        source: &RopeSource<'_>,
        theta: f64,
        head_dim: usize,
    ) -> Result<RopeTable, ConfigError> {
        let share = source.number("partial_rotary_factor")?.unwrap_or(1.0);
        if !(0.0..=1.0).contains(&share) {
            return Err(ConfigError::invalid("partial_rotary_factor", share, "between 0 and 1"));
        }
        let n_rotated = match self.size("rotary_dim")? {
            Some(n_rotated) => n_rotated.min(head_dim),
            // Angles beyond the share are zero.
            None if source.is_proportional() => head_dim,
            None => (head_dim as f64 * share) as usize,
        };
        let scaling = source.scaling()?;
        let table = scaling.table(theta, n_rotated).ok_or_else(|| {
            let expected = format!("{} numbers", n_rotated / 2);
            ConfigError::invalid("rope factors", "a list of another length", expected)
        })?;
        Ok(RopeTable { sections: source.sections(n_rotated / 2)?, ..table })
    }
}
