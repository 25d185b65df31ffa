//! The `quantization_config` of AWQ (AutoAWQ, GPTQModel) and GPTQ (AutoGPTQ, transformers, GPTQModel). Does
//! not know tensors.

use serde_json::{Map, Value};

use super::super::layout::QuantizedBy;
use super::fields::Fields;
use super::rules::{Rules, Target};
use super::{Scheme, SchemeError, auto_round};

/// How a checkpoint was made, and where it was meant to run.
const OF_MAKING: [&str; 20] = [
    "act_group_aware",
    "cache_block_outputs",
    "damp_auto_increment",
    "exllama_version",
    "lm_head",
    "max_input_length",
    "model_file_base_name",
    "model_name_or_path",
    "module_name_preceding_first_block",
    "modules_in_block_to_quantize",
    "mse",
    "pack_dtype",
    "pad_token_id",
    "parallel_packing",
    "static_groups",
    "true_sequential",
    "uri",
    "use_cuda_fp16",
    "use_exllama",
    "disable_exllama",
];

/// AutoRound adds what it knows to the fields of both.
fn pass_over_making(fields: &mut Fields<'_>) -> Result<(), SchemeError> {
    fields.pass_over(&OF_MAKING);
    fields.pass_over(&auto_round::OF_MAKING);
    fields.only("data_type", &["int".into()])
}

/// The formats of AWQ, by the names of its kernels.
const OF_AWQ: [&str; 2] = ["gemm", "gemv"];

pub(super) fn awq(map: &Map<String, Value>) -> Result<Scheme, SchemeError> {
    const NAME: &str = "AWQ";
    let mut fields = Fields::new(NAME, map);
    pass_over_making(&mut fields)?;
    fields.size("bits", 4, &[4])?;
    fields.size("w_bit", 4, &[4])?;
    fields.only("method", &["awq".into()])?;
    fields.only("desc_act", &[false.into()])?;
    let mut kernel = None;
    for name in ["version", "format", "checkpoint_format"] {
        let Some(found) = fields.word(name)? else { continue };
        if !OF_AWQ.contains(&found.as_str()) || kernel.as_ref().is_some_and(|k| *k != found) {
            return Err(fields.refused(name, &map[name]));
        }
        kernel = Some(found);
    }
    fields.flag("zero_point", true)?;
    let group = match fields.group("group_size")? {
        None => fields.group("q_group_size")?,
        group => group,
    };
    fields.done()?;
    let by = match kernel.as_deref() {
        Some("gemv") => QuantizedBy::AwqGemv { group },
        _ => QuantizedBy::Awq { group },
    };
    Ok(Scheme::of_all(NAME, by))
}

const GPTQ: &str = "GPTQ";

pub(super) fn gptq(map: &Map<String, Value>) -> Result<Scheme, SchemeError> {
    // GPTQModel names itself, not the method.
    let is_of_awq =
        |name| map.get(name).and_then(Value::as_str).is_some_and(|format| OF_AWQ.contains(&format));
    if ["format", "checkpoint_format"].into_iter().any(is_of_awq) {
        return awq(map);
    }
    let mut fields = Fields::new(GPTQ, map);
    pass_over_making(&mut fields)?;
    // Which column is of which group is stored beside the weights, and zero points are stored for symmetric ones too.
    fields.pass_over(&["desc_act"]);
    let bits = fields.size("bits", 4, &[2, 3, 4, 8])?;
    let group = fields.group("group_size")?;
    fields.only("method", &["gptq".into()])?;
    fields.only("is_marlin_format", &[false.into()])?;
    let mut format = None;
    for name in ["format", "checkpoint_format"] {
        let Some(found) = fields.word(name)? else { continue };
        if !["gptq", "gptq_v2"].contains(&found.as_str()) || format.as_ref().is_some_and(|f| *f != found) {
            return Err(fields.refused(name, &map[name]));
        }
        format = Some(found);
    }
    let by = QuantizedBy::Gptq { bits, group, zeros_are_less_one: format.as_deref() != Some("gptq_v2") };
    let dynamic =
        fields.get("dynamic").map(|value| value.as_object().ok_or_else(|| fields.refused("dynamic", value)));
    let dynamic = dynamic.transpose()?;
    let rules = rules(dynamic.into_iter().flatten(), by)?;
    fields.done()?;
    Ok(Scheme { name: GPTQ, rules })
}

/// What GPTQModel does to layers whose name matches an expression: `-:`, they are not quantized, else
/// otherwise than the rest.
fn rules<'a>(
    dynamic: impl Iterator<Item = (&'a String, &'a Value)> + Clone,
    rest: QuantizedBy,
) -> Result<Rules, SchemeError> {
    let layouts = dynamic.map(|(pattern, own)| match pattern.strip_prefix("-:") {
        Some(pattern) => Ok((pattern, None)),
        None => Ok((pattern.strip_prefix("+:").unwrap_or(pattern), Some(override_of(own, rest)?))),
    });
    let layouts = layouts.collect::<Result<Vec<_>, SchemeError>>()?;
    // Which layers are not quantized is seen from their tensors.
    if layouts.iter().all(|(_, by)| by.is_none_or(|by| by == rest)) {
        return Ok(Rules::of_all(rest));
    }
    let mut rules = Rules::of_all(rest);
    for (pattern, by) in layouts {
        let pushed = Target::expression(pattern).and_then(|target| rules.push(target, by));
        pushed.map_err(|_| SchemeError::Field {
            format: GPTQ,
            field: "dynamic".to_owned(),
            found: super::shorten(pattern),
        })?;
    }
    Ok(rules)
}

fn override_of(own: &Value, rest: QuantizedBy) -> Result<QuantizedBy, SchemeError> {
    let QuantizedBy::Gptq { bits, group, zeros_are_less_one } = rest else { return Ok(rest) };
    let empty = Map::new();
    let map = own.as_object().unwrap_or(&empty);
    let mut fields = Fields::new("GPTQ dynamic", map);
    pass_over_making(&mut fields)?;
    fields.pass_over(&["desc_act"]);
    let bits = fields.size("bits", bits, &[2, 3, 4, 8])?;
    let group = if map.contains_key("group_size") { fields.group("group_size")? } else { group };
    fields.done()?;
    Ok(QuantizedBy::Gptq { bits, group, zeros_are_less_one })
}
