//! `adapter_config.json` as PEFT writes it: the scale of each pair of matrices. Refuses settings that would
//! change results and are not supported. Does not read weights.

use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value};
use throng_os::mapped_file::open_regular;

use super::AdapterError;

const FILE: &str = "adapter_config.json";
/// Maximum bytes of an `adapter_config.json`; PEFT writes about one kilobyte.
const MAX_BYTES: u64 = 1 << 20;
/// PEFT's extensions of a plain LoRA; a plain one has them off or absent.
const VARIANTS: [&str; 14] = [
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "lora_bias",
    "fan_in_fan_out",
    "modules_to_save",
    "layer_replication",
    "trainable_token_indices",
    "target_parameters",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "velora_config",
    "monteclora_config",
];

/// Settings of the file that matter.
#[derive(Debug)]
pub(super) struct PeftConfig {
    rank: usize,
    alpha: f64,
    is_rank_stabilized: bool,
    rank_pattern: Vec<(String, f64)>,
    alpha_pattern: Vec<(String, f64)>,
    /// The model that it was trained on.
    pub(super) base: Option<String>,
}

impl PeftConfig {
    /// Reads the file of an adapter's folder.
    pub(super) fn read(folder: &Path) -> Result<Self, AdapterError> {
        let path = folder.join(FILE);
        let io = |source| AdapterError::Io { path: path.clone(), source };
        let file = open_regular(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                AdapterError::NoFile { folder: folder.to_owned(), file: FILE, hint: "" }
            }
            _ => io(error),
        })?;
        let mut bytes = Vec::new();
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(AdapterError::Config(format!("has more than {MAX_BYTES} bytes")));
        }
        Self::parse(&bytes)
    }

    fn parse(json: &[u8]) -> Result<Self, AdapterError> {
        let fields: Map<String, Value> = throng_arch::python_json::from_slice(json)
            .map_err(|error| AdapterError::Config(error.to_string()))?;
        let kind = fields.get("peft_type").and_then(Value::as_str).unwrap_or("LORA");
        if kind != "LORA" {
            return Err(refused("peft_type", &Value::from(kind), "LORA"));
        }
        if let Some(bias) = fields.get("bias").filter(|bias| !bias.is_null() && *bias != "none") {
            return Err(refused("bias", bias, "none"));
        }
        let is_off = |value: &Value| match value {
            Value::Null | Value::Bool(false) => true,
            Value::Array(items) => items.is_empty(),
            Value::Object(items) => items.is_empty(),
            _ => false,
        };
        for key in VARIANTS {
            if let Some(value) = fields.get(key).filter(|value| !is_off(value)) {
                return Err(refused(key, value, "null or false"));
            }
        }
        let number = |key: &str| match fields.get(key).and_then(Value::as_f64) {
            Some(number) if number.is_finite() && number > 0.0 => Ok(number),
            _ => Err(AdapterError::Config(format!("{key} is not a positive number"))),
        };
        let rank = number("r")?;
        if rank.fract() != 0.0 || rank > 65_536.0 {
            return Err(AdapterError::Config("r is not a rank".to_owned()));
        }
        Ok(Self {
            rank: rank as usize,
            alpha: number("lora_alpha")?,
            is_rank_stabilized: fields.get("use_rslora") == Some(&Value::Bool(true)),
            rank_pattern: pattern(&fields, "rank_pattern")?,
            alpha_pattern: pattern(&fields, "alpha_pattern")?,
            base: fields.get("base_model_name_or_path").and_then(Value::as_str).map(str::to_owned),
        })
    }

    /// The rank of a module's matrices.
    pub(super) fn rank_of(&self, module: &str) -> usize {
        lookup(&self.rank_pattern, module).map_or(self.rank, |rank| rank as usize)
    }

    /// Factor of the product of a module's matrices: alpha over the rank, or over its root (rsLoRA,
    /// arXiv:2312.03732).
    pub(super) fn scale_of(&self, module: &str) -> f32 {
        let rank = self.rank_of(module) as f64;
        let alpha = lookup(&self.alpha_pattern, module).unwrap_or(self.alpha);
        (alpha / if self.is_rank_stabilized { rank.sqrt() } else { rank }) as f32
    }
}

fn refused(key: &str, found: &Value, expected: &str) -> AdapterError {
    let found: String = found.to_string().chars().take(80).collect();
    AdapterError::Config(format!("{key} = {found} is not supported (supported: {expected})"))
}

/// Numbers by the end of a module's path. PEFT reads the keys as regular expressions; other characters than
/// those of paths are refused, so that no key means something else here.
fn pattern(fields: &Map<String, Value>, key: &str) -> Result<Vec<(String, f64)>, AdapterError> {
    let Some(Value::Object(entries)) = fields.get(key) else { return Ok(Vec::new()) };
    let is_plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.'));
    let entry = |(name, value): (&String, &Value)| match value.as_f64() {
        Some(number) if number > 0.0 && is_plain(name) => Ok((name.clone(), number)),
        _ => Err(refused(&format!("{key}.{name}"), value, "positive numbers by plain names of modules")),
    };
    entries.iter().map(entry).collect()
}

fn lookup(pattern: &[(String, f64)], module: &str) -> Option<f64> {
    let matches = |name: &str| {
        module.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('.'))
    };
    pattern.iter().find(|(name, _)| matches(name)).map(|(_, number)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(fields: &str) -> Result<PeftConfig, String> {
        let json = format!(r#"{{"peft_type": "LORA", "r": 16, "lora_alpha": 32{fields}}}"#);
        PeftConfig::parse(json.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn scales_are_those_of_peft() {
        assert_eq!(parse("").expect("valid").scale_of("model.layers.0.mlp.up_proj"), 2.0);
        assert_eq!(parse(r#", "use_rslora": true"#).expect("valid").scale_of("x"), 8.0);
        let config = parse(
            r#", "rank_pattern": {"layers.1.mlp.up_proj": 4}, "alpha_pattern": {"up_proj": 6, "k_proj": 1}"#,
        )
        .expect("valid");
        assert_eq!(config.rank_of("model.layers.1.mlp.up_proj"), 4);
        assert_eq!(config.scale_of("model.layers.1.mlp.up_proj"), 1.5);
        assert_eq!(config.rank_of("model.layers.11.mlp.up_proj"), 16);
        assert_eq!(config.scale_of("model.layers.0.self_attn.sk_proj"), 2.0);
    }

    #[test]
    fn variants_are_refused_by_name() {
        for (fields, named) in [
            (r#", "use_dora": true"#, "use_dora = true"),
            (r#", "modules_to_save": ["lm_head"]"#, "modules_to_save"),
            (r#", "bias": "all""#, "bias"),
            (r#", "peft_type": "IA3""#, "peft_type"),
            (r#", "alpha_pattern": {"^model": 2}"#, "alpha_pattern.^model"),
            (r#", "lora_alpha": "x""#, "lora_alpha"),
        ] {
            let error = parse(fields).expect_err(named);
            assert!(error.starts_with("adapter_config.json: ") && error.contains(named), "{error}");
        }
        assert!(parse(r#", "bias": "none", "use_dora": false, "modules_to_save": null"#).is_ok());
    }
}
