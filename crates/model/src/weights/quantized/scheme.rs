//! Reads the `quantization_config` of a `config.json` strictly: a field that is not known is refused by name, because it could
//! change what the stored numbers mean. Does not know tensors.

use serde_json::{Map, Value};
use throng_kernels::quant::Format;

/// How the linear layers of a checkpoint are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scheme {
    /// The layout.
    pub by: QuantizedBy,
    /// Its usual name.
    pub name: &'static str,
}

/// A layout of quantized linear layers. A group is the columns that share a scale; without one, a row is a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the parameters of the layouts")]
pub enum QuantizedBy {
    /// FP8 (E4M3) with scales for blocks of rows and columns.
    Fp8Blocks { block: [usize; 2] },
    /// FP8 (E4M3) with a scale for each row, or one.
    Fp8Rows,
    /// NVFP4, as ModelOpt or compressed-tensors names its tensors.
    Nvfp4 { is_modelopt: bool },
    /// AWQ with four bits.
    Awq { group: Option<usize> },
    /// GPTQ; its first format stores zero points less one.
    Gptq { bits: usize, group: Option<usize>, zeros_are_less_one: bool },
    /// Packed integers of compressed-tensors.
    Packed { bits: usize, group: Option<usize>, is_symmetric: bool },
    /// Bytes with a scale for each row.
    Int8Rows,
}

impl QuantizedBy {
    /// Bits of a code.
    pub(super) fn bits(self) -> usize {
        match self {
            Self::Fp8Blocks { .. } | Self::Fp8Rows | Self::Int8Rows => 8,
            Self::Nvfp4 { .. } | Self::Awq { .. } => 4,
            Self::Gptq { bits, .. } | Self::Packed { bits, .. } => bits,
        }
    }

    /// The format that has the numbers of most such checkpoints exactly.
    pub(super) fn usual_format(self) -> Format {
        match self {
            Self::Fp8Blocks { .. } | Self::Fp8Rows | Self::Nvfp4 { .. } => Format::F32,
            Self::Awq { .. } | Self::Packed { bits: 4, is_symmetric: false, .. } => Format::Q5_0,
            Self::Gptq { bits: 8, .. } | Self::Packed { .. } | Self::Int8Rows
                if !matches!(self, Self::Packed { bits: 4, .. }) =>
            {
                Format::Q8_0
            }
            Self::Gptq { .. } | Self::Packed { .. } | Self::Int8Rows => Format::Q4_0,
        }
    }
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

/// Fields of any format that do not change what the numbers mean: which layers are left as they are is seen from their tensors.
const WITHOUT_EFFECT: [&str; 22] = [
    "quant_method",
    "modules_to_not_convert",
    "ignored_layers",
    "ignore",
    "exclude_modules",
    "activation_scheme",
    "activation_scale_ub",
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

impl Scheme {
    /// The scheme of a configuration; `None` where it has none.
    ///
    /// # Errors
    /// For a format that is not known, or a field of it.
    pub fn of_config(config: &Map<String, Value>) -> Result<Option<Self>, SchemeError> {
        let keys = ["quantization_config", "compression_config"];
        let found = keys.iter().find_map(|key| config.get(*key)?.as_object());
        let of_text = || {
            let text = config.get("text_config")?.as_object()?;
            keys.iter().find_map(|key| text.get(*key)?.as_object())
        };
        let Some(fields) = found.or_else(of_text) else { return Ok(None) };
        let method = fields.get("quant_method").and_then(Value::as_str);
        match method {
            Some("fp8") => fp8(fields).map(Some),
            Some("fbgemm_fp8") => Fields::new("FBGEMM FP8", fields).done(QuantizedBy::Fp8Rows).map(Some),
            Some("awq") => awq(fields).map(Some),
            Some("gptq") => gptq(fields).map(Some),
            Some("compressed-tensors") => compressed_tensors(fields).map(Some),
            Some("modelopt") | None if fields.contains_key("quant_algo") => modelopt(fields).map(Some),
            // Experts that the loader of the family puts together.
            Some("mxfp4") => Ok(None),
            other => Err(SchemeError::Format(shorten(other.unwrap_or("an unnamed format")))),
        }
    }
}

/// The beginning of a text of the file, for an error.
fn shorten(text: &str) -> String {
    text.chars().take(80).collect()
}

/// The fields of one format, of which each is known or refused.
struct Fields<'a> {
    format: &'static str,
    map: &'a Map<String, Value>,
    known: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    fn new(format: &'static str, map: &'a Map<String, Value>) -> Self {
        Self { format, map, known: WITHOUT_EFFECT.to_vec() }
    }

    fn get(&mut self, name: &'static str) -> Option<&'a Value> {
        self.known.push(name);
        self.map.get(name).filter(|value| !value.is_null())
    }

    fn refused(&self, field: &str, found: &Value) -> SchemeError {
        SchemeError::Field { format: self.format, field: shorten(field), found: shorten(&found.to_string()) }
    }

    /// Refuses a value other than these, which may be left out.
    fn only(&mut self, name: &'static str, allowed: &[Value]) -> Result<(), SchemeError> {
        match self.get(name).filter(|value| !allowed.contains(value)) {
            None => Ok(()),
            Some(value) => Err(self.refused(name, value)),
        }
    }

    fn flag(&mut self, name: &'static str, default: bool) -> Result<bool, SchemeError> {
        let Some(value) = self.get(name) else { return Ok(default) };
        value.as_bool().ok_or_else(|| self.refused(name, value))
    }

    /// A size of these; where it is left out, the default.
    fn size(&mut self, name: &'static str, default: usize, allowed: &[usize]) -> Result<usize, SchemeError> {
        let Some(value) = self.get(name) else { return Ok(default) };
        let size = value.as_u64().map(|n| n as usize).filter(|n| allowed.contains(n));
        size.ok_or_else(|| self.refused(name, value))
    }

    /// Columns of a group; -1: those of a row.
    fn group(&mut self, name: &'static str) -> Result<Option<usize>, SchemeError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_i64() {
            Some(-1) => Ok(None),
            Some(n @ 1..=65_536) => Ok(Some(n as usize)),
            _ => Err(self.refused(name, value)),
        }
    }

    /// The scheme, if all fields are known.
    fn done(self, by: QuantizedBy) -> Result<Scheme, SchemeError> {
        let is_neutral = |value: &Value| matches!(value, Value::Null | Value::Bool(false));
        let unknown =
            self.map.iter().find(|(key, value)| !self.known.contains(&key.as_str()) && !is_neutral(value));
        match unknown {
            None => Ok(Scheme { by, name: self.format }),
            Some((key, value)) => Err(self.refused(key, value)),
        }
    }
}

fn fp8(map: &Map<String, Value>) -> Result<Scheme, SchemeError> {
    let mut fields = Fields::new("FP8", map);
    fields.only("fmt", &["e4m3".into(), "float8_e4m3fn".into()])?;
    // Scales are powers of two, or any floats: both are stored as floats.
    fields.only("scale_fmt", &["ue8m0".into(), "float".into()])?;
    let Some(block) = fields.get("weight_block_size") else { return fields.done(QuantizedBy::Fp8Rows) };
    let sizes: Option<Vec<usize>> =
        block.as_array().and_then(|list| list.iter().map(|n| n.as_u64().map(|n| n as usize)).collect());
    match sizes.as_deref() {
        Some(&[high @ 1..=65_536, wide @ 1..=65_536]) => {
            fields.done(QuantizedBy::Fp8Blocks { block: [high, wide] })
        }
        _ => Err(fields.refused("weight_block_size", block)),
    }
}

fn awq(map: &Map<String, Value>) -> Result<Scheme, SchemeError> {
    let mut fields = Fields::new("AWQ", map);
    fields.size("bits", 4, &[4])?;
    fields.size("w_bit", 4, &[4])?;
    // "gemv" packs in another order.
    fields.only("version", &["gemm".into(), "GEMM".into()])?;
    fields.flag("zero_point", true)?;
    let group = match fields.group("group_size")? {
        None => fields.group("q_group_size")?,
        group => group,
    };
    fields.done(QuantizedBy::Awq { group })
}

fn gptq(map: &Map<String, Value>) -> Result<Scheme, SchemeError> {
    let mut fields = Fields::new("GPTQ", map);
    // Codes of three bits lie across words.
    let bits = fields.size("bits", 4, &[2, 4, 8])?;
    let group = fields.group("group_size")?;
    // Which column is of which group is stored beside the weights, and zero points are stored for symmetric ones too.
    for name in ["desc_act", "sym", "true_sequential", "static_groups", "lm_head", "pack_dtype"] {
        fields.get(name);
    }
    for name in ["damp_auto_increment", "mse", "uri", "is_marlin_format"] {
        fields.only(name, &[false.into(), 0.into(), 0.0.into()])?;
    }
    fields.only("checkpoint_format", &["gptq".into(), "gptq_v2".into()])?;
    let is_second = map.get("checkpoint_format").and_then(Value::as_str) == Some("gptq_v2");
    fields.done(QuantizedBy::Gptq { bits, group, zeros_are_less_one: !is_second })
}

fn modelopt(map: &Map<String, Value>) -> Result<Scheme, SchemeError> {
    let mut fields = Fields::new("ModelOpt", map);
    fields.only("kv_cache_scheme", &[])?;
    for name in ["kv_cache_quant_algo", "config_groups"] {
        fields.get(name);
    }
    fields.size("group_size", 16, &[16])?;
    match fields.get("quant_algo").and_then(Value::as_str) {
        Some("NVFP4") => fields.done(QuantizedBy::Nvfp4 { is_modelopt: true }),
        Some("FP8") => fields.done(QuantizedBy::Fp8Rows),
        other => Err(SchemeError::Format(format!("modelopt ({})", shorten(other.unwrap_or("nothing"))))),
    }
}

/// The formats of compressed-tensors: all groups of layers must be stored alike.
fn compressed_tensors(map: &Map<String, Value>) -> Result<Scheme, SchemeError> {
    let mut fields = Fields::new("compressed-tensors", map);
    for name in ["config_groups", "sparsity_config", "transform_config"] {
        fields.get(name);
    }
    fields.only("kv_cache_scheme", &[])?;
    for name in ["sparsity_config", "transform_config"] {
        let empty = |value: &&Value| value.as_object().is_none_or(|object| !object.is_empty());
        if let Some(value) = map.get(name).filter(|value| !value.is_null()).filter(empty) {
            return Err(fields.refused(name, value));
        }
    }
    let format = fields.get("format").and_then(Value::as_str).unwrap_or_default().to_owned();
    let groups = map.get("config_groups").and_then(Value::as_object);
    let weights: Vec<&Map<String, Value>> = groups
        .iter()
        .flat_map(|groups| groups.values())
        .filter_map(|group| group.get("weights")?.as_object())
        .collect();
    let Some((first, others)) = weights.split_first() else {
        return Err(SchemeError::Format("compressed-tensors without weights".to_owned()));
    };
    if others.iter().any(|other| other != first) {
        return Err(SchemeError::Format("compressed-tensors with several kinds of weights".to_owned()));
    }
    let by = of_weights(&format, first)?;
    fields.done(by)
}

fn of_weights(format: &str, weights: &Map<String, Value>) -> Result<QuantizedBy, SchemeError> {
    let mut fields = Fields::new("compressed-tensors weights", weights);
    for name in ["observer", "observer_kwargs", "actorder", "type", "scale_dtype", "zp_dtype"] {
        fields.get(name);
    }
    fields.only("dynamic", &[false.into()])?;
    let bits = fields.size("num_bits", 8, &[4, 8])?;
    let is_symmetric = fields.flag("symmetric", true)?;
    let group = fields.group("group_size")?;
    let strategy = fields.get("strategy").and_then(Value::as_str).unwrap_or("tensor").to_owned();
    let block: Option<Vec<usize>> = fields
        .get("block_structure")
        .and_then(Value::as_array)
        .and_then(|list| list.iter().map(|n| n.as_u64().map(|n| n as usize)).collect());
    let by = match (format, bits, strategy.as_str()) {
        ("pack-quantized", _, "group" | "channel") => QuantizedBy::Packed { bits, group, is_symmetric },
        ("int-quantized", 8, "channel" | "tensor") if is_symmetric => QuantizedBy::Int8Rows,
        ("float-quantized" | "naive-quantized", 8, "channel" | "tensor") => QuantizedBy::Fp8Rows,
        ("float-quantized", 8, "block") => match block.as_deref() {
            // compressed-tensors calls the multipliers of blocks `weight_scale`.
            Some(&[_, _]) | None => {
                return Err(SchemeError::Format("compressed-tensors with FP8 blocks".to_owned()));
            }
            Some(_) => return Err(SchemeError::Format("compressed-tensors with odd blocks".to_owned())),
        },
        ("nvfp4-pack-quantized", 4, _) => QuantizedBy::Nvfp4 { is_modelopt: false },
        _ => {
            let (format, strategy) = (shorten(format), shorten(&strategy));
            let found = format!("compressed-tensors ({format}) with {bits} bits by {strategy}");
            return Err(SchemeError::Format(found));
        }
    };
    fields.done(by).map(|scheme| scheme.by)
}
