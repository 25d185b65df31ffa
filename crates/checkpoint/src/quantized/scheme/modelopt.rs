//! The `quantization_config` of NVIDIA's ModelOpt, in `config.json` or in `hf_quant_config.json`. Does not
//! know tensors.

use serde_json::{Map, Value};

use super::super::layouts::Layout;
use super::fields::Fields;
use super::rules::{Rules, Target};
use super::{Method, Scheme, SchemeError};

pub(super) const METHOD: Method =
    Method { names: &["modelopt", "modelopt_fp4", "modelopt_mixed"], read: scheme };

const NAME: &str = "ModelOpt";

/// `None` where the weights are not quantized.
fn scheme(map: &Map<String, Value>) -> Result<Option<Scheme>, SchemeError> {
    let mut fields = Fields::new(NAME, map);
    fields.pass_over(&["kv_cache_quant_algo", "config_groups"]);
    let Some(algorithm) = fields.word("quant_algo")? else { return Ok(None) };
    if algorithm != "mixed_precision" {
        let layout = of_algorithm(&mut fields, map)?;
        fields.done()?;
        return Ok(layout.map(|layout| Scheme::of_all(NAME, layout)));
    }
    fields.pass_over(&["group_size"]);
    let layers = fields.get("quantized_layers").and_then(Value::as_object);
    let layers = layers.ok_or_else(|| fields.refused("quant_algo", &map["quant_algo"]))?;
    let mut rules = Rules::default();
    for (layer, own) in layers {
        let own = own.as_object().ok_or_else(|| fields.refused("quantized_layers", own))?;
        let mut of_layer = Fields::new("ModelOpt quantized_layers", own);
        let layout = of_algorithm(&mut of_layer, own)?;
        of_layer.done()?;
        let pushed = rules.push(Target::Module(layer.clone()), layout);
        pushed.map_err(|_| fields.refused("quantized_layers", &layers.len().into()))?;
    }
    fields.done()?;
    Ok(Some(Scheme { name: NAME, rules }))
}

/// `None` for layers that are not quantized.
fn of_algorithm(fields: &mut Fields<'_>, map: &Map<String, Value>) -> Result<Option<Layout>, SchemeError> {
    let algorithm = fields.word("quant_algo")?;
    let (layout, group) = match algorithm.as_deref() {
        Some("fp8" | "fp8_per_channel_per_token") => (Layout::FP8_ROWS, None),
        Some("fp8_pb_wo") => (Layout::fp8_blocks([128, 128]), Some(128)),
        Some("nvfp4" | "w4a16_nvfp4") => (Layout::NVFP4_MODELOPT, Some(16)),
        Some("mxfp8") => (Layout::MXFP8, Some(32)),
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
    Ok(Some(layout))
}
