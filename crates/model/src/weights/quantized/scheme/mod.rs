//! Reads the `quantization_config` of a `config.json` strictly: a field that is not known is refused by name, because it could
//! change what the stored numbers mean. Does not know tensors.

mod auto_round;
mod compressed_tensors;
mod fields;
mod integers;
mod modelopt;
mod rules;

use serde_json::{Map, Value};

use super::layout::QuantizedBy;
use fields::Fields;
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
    pub(crate) const KEYS: [&'static str; 3] = ["quantization_config", "compression_config", "quantization"];

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
        let method = fields.get("quant_method").and_then(Value::as_str);
        match method {
            Some("fp8") => fp8(fields).map(Some),
            Some("fbgemm_fp8") => {
                Fields::new("FBGEMM FP8", fields).done()?;
                Ok(Some(Self::of_all("FBGEMM FP8", QuantizedBy::Fp8Rows)))
            }
            Some("awq") => integers::awq(fields).map(Some),
            Some("gptq") => integers::gptq(fields).map(Some),
            Some("auto-round" | "intel/auto-round") => auto_round::scheme(fields).map(Some),
            Some("compressed-tensors") => compressed_tensors::scheme(fields).map(Some),
            Some("modelopt" | "modelopt_fp4" | "modelopt_mixed") => modelopt::scheme(fields),
            None if fields.contains_key("quant_algo") => modelopt::scheme(fields),
            // Experts that the loader of the family puts together.
            Some("mxfp4") => Ok(None),
            // Older files of bitsandbytes do not name it.
            None if fields.contains_key("load_in_4bit") => {
                Err(SchemeError::Format("bitsandbytes".to_owned()))
            }
            // MLX names no method.
            None if is_of_mlx(fields) => Err(SchemeError::Format("MLX's format".to_owned())),
            other => Err(SchemeError::Format(usual_name(other.unwrap_or("an unnamed format")))),
        }
    }
}

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

fn fp8(map: &Map<String, Value>) -> Result<Scheme, SchemeError> {
    const NAME: &str = "FP8";
    let mut fields = Fields::new(NAME, map);
    // What transformers would do with the weights.
    fields.pass_over(&["dequantize"]);
    fields.only("fmt", &["e4m3".into(), "float8_e4m3fn".into()])?;
    // Scales are powers of two, or any floats: both are read.
    fields.only("scale_fmt", &["ue8m0".into(), "float".into()])?;
    let by = match fields.block("weight_block_size")? {
        Some(block) => QuantizedBy::Fp8Blocks { block },
        None => QuantizedBy::Fp8Rows,
    };
    fields.done()?;
    Ok(Scheme::of_all(NAME, by))
}
