//! Reads the `quantization_config` of a `config.json` strictly: a field that is not known is refused by name,
//! because it could change what the stored numbers mean. Does not know tensors.

mod auto_round;
mod compressed_tensors;
mod fields;
mod fp8;
mod integers;
mod modelopt;
mod rules;

use serde_json::{Map, Value};

use super::layout::QuantizedBy;
use rules::Rules;

/// How the linear layers of a checkpoint are stored.
#[derive(Debug, Clone)]
pub struct Scheme {
    /// The usual name of the format.
    pub name: &'static str,
    rules: Rules,
}

/// Why a `quantization_config` was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemeError {
    /// A format without a decoder.
    #[error("{0}")]
    Format(String),
    /// A known format with a field whose value, or meaning, is not.
    #[error("{field} = {found} of {format}")]
    Field {
        /// The format.
        format: &'static str,
        /// The field.
        field: String,
        /// Its value.
        found: String,
    },
}

impl Scheme {
    /// One layout for all layers.
    pub fn of_all(name: &'static str, by: QuantizedBy) -> Self {
        Self { name, rules: Rules::of_all(by) }
    }

    /// The layout of a layer of this name; `None` where the configuration does not say.
    pub fn of_layer(&self, layer: &str) -> Option<QuantizedBy> {
        self.rules.of_layer(layer)
    }

    /// Keys of a `config.json` that say how weights are quantized; the last one is MLX's.
    pub const KEYS: [&'static str; 3] = ["quantization_config", "compression_config", "quantization"];

    /// The scheme of a configuration; `None` where it has none.
    ///
    /// # Errors
    /// For a format that is not known, or a field of it.
    pub fn of_config(config: &Map<String, Value>) -> Result<Option<Self>, SchemeError> {
        let found = Self::KEYS.iter().find_map(|key| config.get(*key)?.as_object());
        let of_text = || {
            let text = config.get("text_config")?.as_object()?;
            Self::KEYS.iter().find_map(|key| text.get(*key)?.as_object())
        };
        let Some(fields) = found.or_else(of_text) else { return Ok(None) };
        // ModelOpt's own file has its fields in an object.
        let fields = fields.get("quantization").and_then(Value::as_object).unwrap_or(fields);
        match fields.get("quant_method").and_then(Value::as_str) {
            Some(method) => match METHODS.iter().find(|(name, _)| *name == method) {
                Some((_, read)) => read(fields),
                None => Err(SchemeError::Format(usual_name(method))),
            },
            None if fields.contains_key("quant_algo") => modelopt::scheme(fields),
            // Older files of bitsandbytes do not name it.
            None if fields.contains_key("load_in_4bit") => {
                Err(SchemeError::Format("bitsandbytes".to_owned()))
            }
            // MLX names no method.
            None if is_of_mlx(fields) => Err(SchemeError::Format("MLX's format".to_owned())),
            None => Err(SchemeError::Format("an unnamed format".to_owned())),
        }
    }
}

/// Reads the fields of a format; `None` where no layer is decoded by a scheme.
type Read = fn(&Map<String, Value>) -> Result<Option<Scheme>, SchemeError>;

/// Formats by their `quant_method`.
const METHODS: [(&str, Read); 11] = [
    ("fp8", |fields| fp8::scheme(fields).map(Some)),
    ("fbgemm_fp8", |fields| fp8::fbgemm(fields).map(Some)),
    ("awq", |fields| integers::awq(fields).map(Some)),
    ("gptq", |fields| integers::gptq(fields).map(Some)),
    ("auto-round", |fields| auto_round::scheme(fields).map(Some)),
    ("intel/auto-round", |fields| auto_round::scheme(fields).map(Some)),
    ("compressed-tensors", |fields| compressed_tensors::scheme(fields).map(Some)),
    ("modelopt", modelopt::scheme),
    ("modelopt_fp4", modelopt::scheme),
    ("modelopt_mixed", modelopt::scheme),
    // Experts that the loader of the family puts together.
    ("mxfp4", |_| Ok(None)),
];

/// Formats without a decoder by their `quant_method`, and their usual names.
const OTHERS: [(&str, &str); 13] = [
    ("aqlm", "AQLM"),
    ("bitnet", "BitNet"),
    ("bitnet_158", "BitNet"),
    ("bitsandbytes", "bitsandbytes"),
    ("eetq", "EETQ"),
    ("exl2", "EXL2 of ExLlamaV2"),
    ("exl3", "EXL3 of ExLlamaV3"),
    ("hqq", "HQQ"),
    ("mlx", "MLX's format"),
    ("quanto", "Quanto"),
    ("quark", "AMD's Quark"),
    ("torchao", "torchao"),
    ("vptq", "VPTQ"),
];

/// Methods that have decoders are named as the file names them.
fn usual_name(method: &str) -> String {
    let known = OTHERS.iter().find(|(name, _)| name.eq_ignore_ascii_case(method));
    known.map_or_else(|| shorten(method), |(_, usual)| (*usual).to_owned())
}

/// Whether the fields are what MLX writes: bits and a size of groups without a method.
fn is_of_mlx(fields: &Map<String, Value>) -> bool {
    fields.contains_key("bits") && fields.contains_key("group_size")
}

/// The beginning of a text of the file, for an error.
fn shorten(text: &str) -> String {
    text.chars().take(80).collect()
}
