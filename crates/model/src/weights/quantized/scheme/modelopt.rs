//! The `quantization_config` of NVIDIA's ModelOpt. Does not know tensors.

use serde_json::{Map, Value};

use super::super::layout::QuantizedBy;
use super::fields::Fields;
use super::{Scheme, SchemeError, shorten};

pub(super) fn scheme(map: &Map<String, Value>) -> Result<Scheme, SchemeError> {
    const NAME: &str = "ModelOpt";
    let mut fields = Fields::new(NAME, map);
    fields.pass_over(&["kv_cache_quant_algo", "config_groups"]);
    fields.size("group_size", 16, &[16])?;
    let by = match fields.get("quant_algo").and_then(Value::as_str) {
        Some("NVFP4") => QuantizedBy::Nvfp4 { is_modelopt: true },
        Some("FP8") => QuantizedBy::Fp8Rows,
        other => {
            return Err(SchemeError::Format(format!("modelopt ({})", shorten(other.unwrap_or("nothing")))));
        }
    };
    fields.done()?;
    Ok(Scheme::of_all(NAME, by))
}
