//! Reads the `quantization_config` of a `config.json` strictly: an unknown field is refused by name, because
//! it could change the meaning of the stored numbers. Does not know tensors.

mod auto_round;
mod awq;
mod compressed_tensors;
mod fbgemm;
mod fields;
mod fp8;
mod gptq;
mod making;
mod modelopt;
mod rules;

use serde_json::{Map, Value};

use super::layouts::Layout;
use rules::Rules;

/// Layouts of a checkpoint's linear layers.
#[derive(Debug, Clone)]
pub struct Scheme {
    /// The usual name of the format.
    pub name: &'static str,
    rules: Rules,
}

/// Reason why a `quantization_config` was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemeError {
    /// A format without a decoder.
    #[error("{0}")]
    Format(String),
    /// A supported format with a field whose value, or meaning, is unknown.
    #[error("{field} = {found} of {format}")]
    Field {
        /// Name of the format.
        format: &'static str,
        /// Name of the field.
        field: String,
        /// Value of the field.
        found: String,
    },
}

impl Scheme {
    /// A scheme with one layout for all layers.
    pub fn of_all(name: &'static str, layout: Layout) -> Self {
        Self { name, rules: Rules::of_all(layout) }
    }

    /// The layout of a layer of this name; `None` if the configuration has none.
    pub fn of_layer(&self, layer: &str) -> Option<Layout> {
        self.rules.of_layer(layer)
    }

    /// Keys of a `config.json` that describe the quantization of weights; the last one is MLX's.
    pub const KEYS: [&'static str; 3] = ["quantization_config", "compression_config", "quantization"];

    /// The scheme of a configuration; `None` where it has none.
    ///
    /// # Errors
    /// For an unknown format, or an unknown field.
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
            Some(method) => match METHODS.iter().find(|known| known.names.contains(&method)) {
                Some(known) => (known.read)(fields),
                None => Err(SchemeError::Format(usual_name(method))),
            },
            None if fields.contains_key("quant_algo") => (modelopt::METHOD.read)(fields),
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

/// Reads the fields of a configuration.
type ReadScheme = fn(&Map<String, Value>) -> Result<Option<Scheme>, SchemeError>;

/// Description of a method of quantization.
struct Method {
    /// Values of `quant_method` that select this method.
    names: &'static [&'static str],
    /// Reads its fields; `None` where no layer is decoded by a scheme.
    read: ReadScheme,
}

const METHODS: [Method; 8] = [
    auto_round::METHOD,
    awq::METHOD,
    compressed_tensors::METHOD,
    fbgemm::METHOD,
    fp8::METHOD,
    gptq::METHOD,
    modelopt::METHOD,
    // Experts that the loader of the family puts together.
    Method { names: &["mxfp4"], read: |_| Ok(None) },
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

/// The usual name of a method: for methods with a decoder, the name in the file.
fn usual_name(method: &str) -> String {
    let known = OTHERS.iter().find(|(name, _)| name.eq_ignore_ascii_case(method));
    known.map_or_else(|| shorten(method), |(_, usual)| (*usual).to_owned())
}

/// Whether the fields are those of MLX: bits and a size of groups without a method.
fn is_of_mlx(fields: &Map<String, Value>) -> bool {
    fields.contains_key("bits") && fields.contains_key("group_size")
}

/// The beginning of a text of the file, for an error.
fn shorten(text: &str) -> String {
    text.chars().take(80).collect()
}
