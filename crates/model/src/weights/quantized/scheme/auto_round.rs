//! The `quantization_config` of Intel's AutoRound, which stores layers in the layouts of GPTQ or AWQ. Does not know tensors.

use serde_json::{Map, Value};

use super::super::layout::QuantizedBy;
use super::fields::Fields;
use super::rules::{RuleError, Rules, Target};
use super::{Scheme, SchemeError};

const NAME: &str = "AutoRound";
/// Fields that do not change how weights are read: how the checkpoint was calibrated, and how activations, keys and values would be quantized. Whether a
/// layer is symmetric is read from its zero points, and whether it is quantized from the names of its tensors.
const OF_MAKING: [&str; 41] = [
    "act_bits",
    "act_data_type",
    "act_dynamic",
    "act_group_size",
    "act_sym",
    "amp",
    "autoround_version",
    "batch_size",
    "block_name_to_quantize",
    "dynamic_max_gap",
    "enable_alg_ext",
    "enable_minmax_tuning",
    "enable_norm_bias_tuning",
    "enable_quanted_input",
    "enable_torch_compile",
    "gradient_accumulate_steps",
    "iters",
    "low_cpu_mem_usage",
    "low_gpu_mem_usage",
    "lr",
    "lr_scheduler",
    "minmax_lr",
    "momentum",
    "nblocks",
    "not_use_best_mse",
    "nsamples",
    "provider",
    "quant_block_list",
    "quant_nontext_module",
    "sampler",
    "scale_dtype",
    "seed",
    "seqlen",
    "static_attention_dtype",
    "static_kv_dtype",
    "sym",
    "to_quant_block_names",
    "truncation",
    "use_quant_input",
    "static_attention_granularity",
    "static_kv_granularity",
];
/// What makes a name in `extra_config` a regular expression.
const SPECIAL: &str = "*+?^$()[]{}|\\";

pub(super) fn scheme(map: &Map<String, Value>) -> Result<Scheme, SchemeError> {
    let mut fields = Fields::new(NAME, map);
    fields.pass_over(&OF_MAKING);
    fields.only("data_type", &["int".into()])?;
    let packing = fields.word("packing_format")?;
    let is_awq = match packing.as_deref() {
        None | Some("auto_round:auto_gptq") => false,
        Some("auto_round:auto_awq") => true,
        Some(_) => return Err(fields.refused("packing_format", &map["packing_format"])),
    };
    let by = layout(&mut fields, is_awq, None)?;
    let extra = fields.get("extra_config").and_then(Value::as_object);
    let mut layers = Vec::new();
    for (name, own) in extra.into_iter().flatten() {
        let own = own.as_object().ok_or_else(|| fields.refused("extra_config", own))?;
        layers.push((name.as_str(), of_layer(own, is_awq, by)?));
    }
    fields.done()?;
    if layers.iter().all(|(_, own)| own.is_none_or(|own| own == by)) {
        return Ok(Scheme::of_all(NAME, by));
    }
    // Names come before expressions.
    layers.sort_by_key(|(name, _)| name.contains(|c| SPECIAL.contains(c)));
    let mut rules = Rules::of_all(by);
    for (name, own) in layers {
        let pushed = target(name).and_then(|target| rules.push(target, own));
        pushed.map_err(|RuleError| SchemeError::Field {
            format: NAME,
            field: "extra_config".to_owned(),
            found: super::shorten(name),
        })?;
    }
    Ok(Scheme { name: NAME, rules })
}

/// An expression must match a name to its end.
fn target(name: &str) -> Result<Target, RuleError> {
    match name.contains(|c| SPECIAL.contains(c)) {
        true => Target::expression(&format!("(?:{name})$")),
        false => Ok(Target::Module(name.to_owned())),
    }
}

/// The layout of a layer with fields of its own; `None`: with sixteen bits it is not quantized.
fn of_layer(
    own: &Map<String, Value>,
    is_awq: bool,
    rest: QuantizedBy,
) -> Result<Option<QuantizedBy>, SchemeError> {
    if own.get("bits").and_then(Value::as_u64).is_some_and(|bits| bits >= 16) {
        return Ok(None);
    }
    let mut fields = Fields::new("AutoRound extra_config", own);
    fields.pass_over(&OF_MAKING);
    fields.only("data_type", &["int".into()])?;
    let by = layout(&mut fields, is_awq, Some(rest))?;
    fields.done()?;
    Ok(Some(by))
}

fn layout(
    fields: &mut Fields<'_>,
    is_awq: bool,
    rest: Option<QuantizedBy>,
) -> Result<QuantizedBy, SchemeError> {
    let (of_rest, group_of_rest) = match rest {
        Some(QuantizedBy::Gptq { bits, group, .. }) => (bits, group),
        Some(QuantizedBy::Awq { group }) => (4, group),
        _ => (4, None),
    };
    let bits = fields.size("bits", of_rest, if is_awq { &[4] } else { &[2, 4, 8] })?;
    let group = if fields.get("group_size").is_some() { fields.group("group_size")? } else { group_of_rest };
    Ok(match is_awq {
        true => QuantizedBy::Awq { group },
        false => QuantizedBy::Gptq { bits, group, zeros_are_less_one: true },
    })
}
