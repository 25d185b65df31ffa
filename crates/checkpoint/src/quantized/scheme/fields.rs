//! The fields of one object of a configuration; unknown fields are refused by name. Does not know formats.

use serde_json::{Map, Value};

use super::SchemeError;

/// Fields of any format that do not change the weights. Unquantized layers are recognized by their tensors;
/// activations, keys and values are held as the engine holds them.
const WITHOUT_EFFECT: [&str; 23] = [
    "quant_method",
    "modules_to_not_convert",
    "ignored_layers",
    "ignore",
    "exclude_modules",
    "activation_scheme",
    "activation_scale_ub",
    "kv_cache_scheme",
    "producer",
    "version",
    "backend",
    "do_fuse",
    "fuse_max_seq_len",
    "modules_to_fuse",
    "exllama_config",
    "model_seqlen",
    "dataset",
    "tokenizer",
    "damp_percent",
    "quantizer",
    "meta",
    "quantization_status",
    "global_compression_ratio",
];

/// The fields of one object.
pub(super) struct Fields<'a> {
    format: &'static str,
    map: &'a Map<String, Value>,
    known: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(format: &'static str, map: &'a Map<String, Value>) -> Self {
        Self { format, map, known: WITHOUT_EFFECT.to_vec() }
    }

    /// A value that is present and not null.
    pub(super) fn get(&mut self, name: &'static str) -> Option<&'a Value> {
        self.known.push(name);
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// Fields whose values do not matter.
    pub(super) fn pass_over(&mut self, names: &[&'static str]) {
        self.known.extend(names);
    }

    pub(super) fn refused(&self, field: &str, found: &Value) -> SchemeError {
        SchemeError::Field {
            format: self.format,
            field: super::shorten(field),
            found: super::shorten(&found.to_string()),
        }
    }

    /// Refuses a value other than these, which may be left out.
    pub(super) fn only(&mut self, name: &'static str, allowed: &[Value]) -> Result<(), SchemeError> {
        match self.get(name).filter(|value| !allowed.contains(value)) {
            None => Ok(()),
            Some(value) => Err(self.refused(name, value)),
        }
    }

    pub(super) fn flag(&mut self, name: &'static str, default: bool) -> Result<bool, SchemeError> {
        let Some(value) = self.get(name) else { return Ok(default) };
        value.as_bool().ok_or_else(|| self.refused(name, value))
    }

    /// A word, in lower case.
    pub(super) fn word(&mut self, name: &'static str) -> Result<Option<String>, SchemeError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let word = value.as_str().ok_or_else(|| self.refused(name, value))?;
        Ok(Some(word.to_ascii_lowercase()))
    }

    /// A size among these; the default if absent.
    pub(super) fn size(
        &mut self,
        name: &'static str,
        default: usize,
        allowed: &[usize],
    ) -> Result<usize, SchemeError> {
        let Some(value) = self.get(name) else { return Ok(default) };
        let size = value.as_u64().map(|n| n as usize).filter(|n| allowed.contains(n));
        size.ok_or_else(|| self.refused(name, value))
    }

    /// Columns of a group; -1 for whole rows.
    pub(super) fn group(&mut self, name: &'static str) -> Result<Option<usize>, SchemeError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_i64() {
            Some(-1) => Ok(None),
            Some(n @ 1..=65_536) => Ok(Some(n as usize)),
            _ => Err(self.refused(name, value)),
        }
    }

    /// Rows and columns of a block, as a list or as `128x128`.
    pub(super) fn block(&mut self, name: &'static str) -> Result<Option<[usize; 2]>, SchemeError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let sizes: Option<Vec<u64>> = match value {
            Value::Array(list) => list.iter().map(Value::as_u64).collect(),
            Value::String(text) => text.split('x').map(|n| n.parse().ok()).collect(),
            _ => None,
        };
        match sizes.as_deref() {
            Some(&[high @ 1..=65_536, wide @ 1..=65_536]) => Ok(Some([high as usize, wide as usize])),
            _ => Err(self.refused(name, value)),
        }
    }

    /// Refuses the remaining fields that no caller has read, except those whose value has no effect.
    pub(super) fn done(self) -> Result<(), SchemeError> {
        let is_neutral = |value: &Value| match value {
            Value::Null | Value::Bool(false) => true,
            Value::Object(map) => map.is_empty(),
            Value::Array(list) => list.is_empty(),
            _ => false,
        };
        let unknown =
            self.map.iter().find(|(key, value)| !self.known.contains(&key.as_str()) && !is_neutral(value));
        match unknown {
            None => Ok(()),
            Some((key, value)) => Err(self.refused(key, value)),
        }
    }
}
