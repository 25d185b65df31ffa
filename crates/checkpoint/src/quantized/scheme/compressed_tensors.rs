//! The `quantization_config` of compressed-tensors: groups of layers, each with the layout of its weights.
//! Schemes and formats by `quant_scheme.py` and `compressors/` of that library. Does not know tensors.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::super::layouts::Layout;
use super::fields::Fields;
use super::rules::{RuleError, Rules, Target};
use super::{Method, Scheme, SchemeError, shorten};

pub(super) const METHOD: Method =
    Method { names: &["compressed-tensors"], read: |fields| scheme(fields).map(Some) };

const NAME: &str = "compressed-tensors";

/// Settings of the weights of a `format` that are read.
struct Kind {
    formats: &'static [&'static str],
    type_: &'static str,
    bits: RangeInclusive<usize>,
    strategies: &'static [&'static str],
}

const KINDS: [Kind; 6] = [
    Kind {
        formats: &["pack-quantized"],
        type_: "int",
        bits: 2..=8,
        strategies: &["tensor", "channel", "group"],
    },
    Kind {
        formats: &["int-quantized", "naive-quantized"],
        type_: "int",
        bits: 2..=8,
        strategies: &["tensor", "channel", "group"],
    },
    Kind {
        formats: &["float-quantized", "naive-quantized"],
        type_: "float",
        bits: 8..=8,
        strategies: &["tensor", "channel", "group", "block"],
    },
    Kind { formats: &["nvfp4-pack-quantized"], type_: "float", bits: 4..=4, strategies: &["tensor_group"] },
    Kind { formats: &["mxfp4-pack-quantized"], type_: "float", bits: 4..=4, strategies: &["group"] },
    Kind { formats: &["mxfp8-quantized"], type_: "float", bits: 8..=8, strategies: &["group"] },
];

fn scheme(map: &Map<String, Value>) -> Result<Scheme, SchemeError> {
    let mut fields = Fields::new(NAME, map);
    fields.pass_over(&["run_compressed"]);
    // Many checkpoints have these two fields although their weights are dense and not rotated: then they are empty.
    for name in ["sparsity_config", "transform_config"] {
        let value = fields.get(name).filter(|value| value.get("format") != Some(&"dense".into()));
        let is_empty = |value: &Value| match value.as_object() {
            Some(map) => map.values().all(|value| value.as_object().is_some_and(Map::is_empty)),
            None => false,
        };
        if let Some(value) = value.filter(|value| !is_empty(value)) {
            return Err(fields.refused(name, value));
        }
    }
    let format = fields.word("format")?;
    let groups = fields.get("config_groups").and_then(Value::as_object);
    let mut layouts: Vec<(Layout, &[Value])> = Vec::new();
    for (name, group) in groups.into_iter().flatten() {
        let Some(group) = group.as_object() else {
            return Err(fields.refused(&format!("config_groups.{name}"), group));
        };
        layouts.extend(of_group(group, format.as_deref())?);
    }
    let Some((first, others)) = layouts.split_first() else {
        return Err(SchemeError::Format("compressed-tensors without weights".to_owned()));
    };
    // With one layout, it does not matter which layers a group names.
    let rules = match others.iter().all(|(layout, _)| *layout == first.0) {
        true => Rules::of_all(first.0),
        false => rules_of(&layouts).map_err(|target| fields.refused("targets", target))?,
    };
    fields.done()?;
    Ok(Scheme { name: NAME, rules })
}

/// Rules of all groups: names of layers before expressions. An unknown target is an error.
fn rules_of<'a>(layouts: &[(Layout, &'a [Value])]) -> Result<Rules, &'a Value> {
    let mut targets: Vec<(Layout, &Value)> =
        layouts.iter().flat_map(|(layout, targets)| targets.iter().map(|target| (*layout, target))).collect();
    targets.sort_by_key(|(_, target)| target.as_str().is_some_and(|text| text.starts_with("re:")));
    let mut rules = Rules::default();
    for (layout, target) in targets {
        add(&mut rules, target, layout).map_err(|RuleError| target)?;
    }
    Ok(rules)
}

/// The layout of a group and its targets; `None` if it is about activations only.
fn of_group<'a>(
    group: &'a Map<String, Value>,
    format: Option<&str>,
) -> Result<Option<(Layout, &'a [Value])>, SchemeError> {
    let mut fields = Fields::new("compressed-tensors group", group);
    fields.pass_over(&["input_activations", "output_activations"]);
    let own = fields.word("format")?;
    let targets = fields.get("targets").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let weights =
        fields.get("weights").map(|value| value.as_object().ok_or_else(|| fields.refused("weights", value)));
    let Some(weights) = weights.transpose()? else { return Ok(None) };
    fields.done()?;
    let format = own.as_deref().or(format).unwrap_or_default();
    Ok(Some((of_weights(format, weights)?, targets)))
}

/// A target is a regular expression, the class of all linear layers, or the name of a layer. Other classes
/// begin with a capital letter.
fn add(rules: &mut Rules, target: &Value, layout: Layout) -> Result<(), RuleError> {
    let text = target.as_str().ok_or(RuleError)?;
    let target = match text.strip_prefix("re:") {
        Some(pattern) => Target::expression(pattern)?,
        None if text == "Linear" => Target::Rest,
        None if text.starts_with(char::is_uppercase) => return Err(RuleError),
        None => Target::Module(text.to_owned()),
    };
    rules.push(target, Some(layout))
}

fn of_weights(format: &str, weights: &Map<String, Value>) -> Result<Layout, SchemeError> {
    let mut fields = Fields::new("compressed-tensors weights", weights);
    fields.pass_over(&["observer", "observer_kwargs", "actorder", "scale_dtype", "zp_dtype"]);
    fields.only("dynamic", &[false.into()])?;
    let bits = fields.size("num_bits", 8, &[2, 3, 4, 5, 6, 7, 8])?;
    let is_symmetric = fields.flag("symmetric", true)?;
    let (type_, strategy) = (fields.word("type")?, fields.word("strategy")?);
    let (group, block) = (fields.group("group_size")?, fields.block("block_structure")?);
    let strategy = strategy.unwrap_or_else(|| match weights.get("group_size").and_then(Value::as_i64) {
        None => "tensor".to_owned(),
        Some(-1) => "channel".to_owned(),
        Some(_) => "group".to_owned(),
    });
    let found = |field: &str| fields.refused(field, weights.get(field).unwrap_or(&Value::Null));
    let mut kinds: Vec<&Kind> = KINDS.iter().filter(|kind| kind.formats.contains(&format)).collect();
    if kinds.is_empty() {
        return Err(SchemeError::Field { format: NAME, field: "format".to_owned(), found: shorten(format) });
    }
    kinds.retain(|kind| type_.as_ref().is_none_or(|type_| type_ == kind.type_));
    let kind = kinds.first().ok_or_else(|| found("type"))?;
    if !kind.bits.contains(&bits) {
        return Err(found("num_bits"));
    }
    if !kind.strategies.contains(&strategy.as_str()) {
        return Err(found("strategy"));
    }
    if kind.type_ == "float" && !is_symmetric {
        return Err(found("symmetric"));
    }
    // A group of a row's columns has no size.
    let group = group.filter(|_| strategy == "group" || strategy == "tensor_group");
    let of_size = |size: usize, layout: Layout| {
        if group.is_none_or(|group| group == size) { Ok(layout) } else { Err(found("group_size")) }
    };
    let layout = match (kind.formats[0], strategy.as_str()) {
        ("pack-quantized", _) => Layout::packed(bits, group, is_symmetric),
        ("int-quantized", _) => Layout::int8(group, is_symmetric),
        ("nvfp4-pack-quantized", _) => of_size(16, Layout::NVFP4)?,
        ("mxfp4-pack-quantized", _) => of_size(32, Layout::MXFP4)?,
        ("mxfp8-quantized", _) => of_size(32, Layout::MXFP8)?,
        (_, "block") => Layout::fp8_blocks(block.ok_or_else(|| found("block_structure"))?),
        (_, "group") => Layout::fp8_blocks([1, group.ok_or_else(|| found("group_size"))?]),
        _ => Layout::FP8_ROWS,
    };
    fields.done()?;
    Ok(layout)
}
