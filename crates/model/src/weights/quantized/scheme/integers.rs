//! The `quantization_config` of AWQ (AutoAWQ) and GPTQ (AutoGPTQ, GPTQModel). Does not know tensors.

use serde_json::{Map, Value};

use super::super::layout::QuantizedBy;
use super::fields::Fields;
use super::{Scheme, SchemeError};

pub(super) fn awq(map: &Map<String, Value>) -> Result<Scheme, SchemeError> {
    const NAME: &str = "AWQ";
    let mut fields = Fields::new(NAME, map);
    fields.size("bits", 4, &[4])?;
    fields.size("w_bit", 4, &[4])?;
    // "gemv" packs in another order.
    fields.only("version", &["gemm".into(), "GEMM".into()])?;
    fields.flag("zero_point", true)?;
    let group = match fields.group("group_size")? {
        None => fields.group("q_group_size")?,
        group => group,
    };
    fields.done()?;
    Ok(Scheme::of_all(NAME, QuantizedBy::Awq { group }))
}

pub(super) fn gptq(map: &Map<String, Value>) -> Result<Scheme, SchemeError> {
    const NAME: &str = "GPTQ";
    let mut fields = Fields::new(NAME, map);
    // Codes of three bits lie across words.
    let bits = fields.size("bits", 4, &[2, 4, 8])?;
    let group = fields.group("group_size")?;
    // Which column is of which group is stored beside the weights, and zero points are stored for symmetric ones too.
    fields.pass_over(&["desc_act", "sym", "true_sequential", "static_groups", "lm_head", "pack_dtype"]);
    for name in ["damp_auto_increment", "mse", "uri", "is_marlin_format"] {
        fields.only(name, &[false.into(), 0.into(), 0.0.into()])?;
    }
    fields.only("checkpoint_format", &["gptq".into(), "gptq_v2".into()])?;
    let is_second = map.get("checkpoint_format").and_then(Value::as_str) == Some("gptq_v2");
    fields.done()?;
    Ok(Scheme::of_all(NAME, QuantizedBy::Gptq { bits, group, zeros_are_less_one: !is_second }))
}
