//! The `quantization_config` of NVIDIA's ModelOpt, in `config.json` or in `hf_quant_config.json`. Does not
//! know tensors.

use serde_json::{Map, Value};

use super::super::layout::QuantizedBy;
use super::fields::Fields;
use super::rules::{Rules, Target};
use super::{Scheme, SchemeError};

const NAME: &str = "ModelOpt";

/// `None` where the weights are not quantized.
pub(super) fn scheme(map: &Map<String, Value>) -> Result<Option<Scheme>, SchemeError> {
    let mut fields = Fields::new(NAME, map);
    fields.pass_over(&["kv_cache_quant_algo", "config_groups"]);
    let Some(algorithm) = fields.word("quant_algo")? else { return Ok(None) };
    if algorithm != "mixed_precision" {
        let by = of_algorithm(&mut fields, map)?;
        fields.done()?;
        return Ok(by.map(|by| Scheme::of_all(NAME, by)));
    }
    fields.pass_over(&["group_size"]);
    let layers = fields.get("quantized_layers").and_then(Value::as_object);
    let layers = layers.ok_or_else(|| fields.refused("quant_algo", &map["quant_algo"]))?;
    let mut rules = Rules::default();
    for (layer, own) in layers {
        let own = own.as_object().ok_or_else(|| fields.refused("quantized_layers", own))?;
        let mut of_layer = Fields::new("ModelOpt quantized_layers", own);
        let by = of_algorithm(&mut of_layer, own)?;
        of_layer.done()?;
        let pushed = rules.push(Target::Module(layer.clone()), by);
        pushed.map_err(|_| fields.refused("quantized_layers", &layers.len().into()))?;
    }
    fields.done()?;
    Ok(Some(Scheme { name: NAME, rules }))
}

/// `None` where nothing is done.
fn of_algorithm(
    fields: &mut Fields<'_>,
    map: &Map<String, Value>,
) -> Result<Option<QuantizedBy>, SchemeError> {
    let algorithm = fields.word("quant_algo")?;
    let (by, group) = match algorithm.as_deref() {
        Some("fp8" | "fp8_per_channel_per_token") => (QuantizedBy::Fp8Rows, None),
        Some("fp8_pb_wo") => (QuantizedBy::Fp8Blocks { block: [128, 128] }, Some(128)),
        Some("nvfp4" | "w4a16_nvfp4") => (QuantizedBy::Nvfp4 { is_modelopt: true }, Some(16)),
        Some("mxfp8") => (QuantizedBy::Mxfp8, Some(32)),
        Some("unquantized") => return Ok(None),
        _ => {
            let found = map.get("quant_algo").unwrap_or(&Value::Null);
            return Err(fields.refused("quant_algo", found));
        }
    };
    match group {
        Some(group) => {
            fields.size("group_size", group, &[group])?;
        }
        None => fields.pass_over(&["group_size"]),
    }
    Ok(Some(by))
}
