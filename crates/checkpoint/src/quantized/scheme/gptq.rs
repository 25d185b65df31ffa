//! The `quantization_config` of GPTQ (AutoGPTQ, transformers, GPTQModel). Does not know tensors.

use serde_json::{Map, Value};

use super::super::layouts::Layout;
use super::fields::Fields;
use super::rules::{Rules, Target};
use super::{Method, Scheme, SchemeError, awq, making};

pub(super) const METHOD: Method = Method { names: &["gptq"], read: |fields| scheme(fields).map(Some) };

const NAME: &str = "GPTQ";

fn scheme(map: &Map<String, Value>) -> Result<Scheme, SchemeError> {
    // GPTQModel names itself, not the method.
    let is_of_awq =
        |name| map.get(name).and_then(Value::as_str).is_some_and(|format| awq::KERNELS.contains(&format));
    if ["format", "checkpoint_format"].into_iter().any(is_of_awq) {
        return awq::scheme(map);
    }
    let mut fields = Fields::new(NAME, map);
    making::pass_over(&mut fields)?;
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
    let layout = match format.as_deref() {
        Some("gptq_v2") => Layout::gptq_v2(bits, group),
        _ => Layout::gptq(bits, group),
    };
    let dynamic =
        fields.get("dynamic").map(|value| value.as_object().ok_or_else(|| fields.refused("dynamic", value)));
    let dynamic = dynamic.transpose()?;
    let rules = rules(dynamic.into_iter().flatten(), layout)?;
    fields.done()?;
    Ok(Scheme { name: NAME, rules })
}

/// Rules of GPTQModel for layers whose name matches an expression: with `-:` they are not quantized,
/// otherwise quantized with other parameters.
fn rules<'a>(
    dynamic: impl Iterator<Item = (&'a String, &'a Value)> + Clone,
    rest: Layout,
) -> Result<Rules, SchemeError> {
    let layouts = dynamic.map(|(pattern, own)| match pattern.strip_prefix("-:") {
        Some(pattern) => Ok((pattern, None)),
        None => Ok((pattern.strip_prefix("+:").unwrap_or(pattern), Some(override_of(own, rest)?))),
    });
    let layouts = layouts.collect::<Result<Vec<_>, SchemeError>>()?;
    // Which layers are not quantized is seen from their tensors.
    if layouts.iter().all(|(_, layout)| layout.is_none_or(|layout| layout == rest)) {
        return Ok(Rules::of_all(rest));
    }
    let mut rules = Rules::of_all(rest);
    for (pattern, layout) in layouts {
        let pushed = Target::expression(pattern).and_then(|target| rules.push(target, layout));
        pushed.map_err(|_| SchemeError::Field {
            format: NAME,
            field: "dynamic".to_owned(),
            found: super::shorten(pattern),
        })?;
    }
    Ok(rules)
}

fn override_of(own: &Value, rest: Layout) -> Result<Layout, SchemeError> {
    let empty = Map::new();
    let map = own.as_object().unwrap_or(&empty);
    let mut fields = Fields::new("GPTQ dynamic", map);
    making::pass_over(&mut fields)?;
    fields.pass_over(&["desc_act"]);
    let bits = fields.size("bits", rest.bits, &[2, 3, 4, 8])?;
    let group = if map.contains_key("group_size") { fields.group("group_size")? } else { rest.group };
    fields.done()?;
    Ok(rest.with_sizes(bits, group))
}
