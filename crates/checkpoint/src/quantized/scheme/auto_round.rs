//! The `quantization_config` of Intel's AutoRound, which stores layers in the layouts of GPTQ or AWQ, or as
//! compressed-tensors does in short floats. Does not know tensors.

use serde_json::{Map, Value};

use super::super::layouts::Layout;
use super::fields::Fields;
use super::rules::{RuleError, Rules, Target};
use super::{Method, Scheme, SchemeError, making};

pub(super) const METHOD: Method =
    Method { names: &["auto-round", "intel/auto-round"], read: |fields| scheme(fields).map(Some) };

const NAME: &str = "AutoRound";
/// Characters that turn a name in `extra_config` into a regular expression.
const SPECIAL: &str = "*+?^$()[]{}|\\";

fn scheme(map: &Map<String, Value>) -> Result<Scheme, SchemeError> {
    let mut fields = Fields::new(NAME, map);
    fields.pass_over(&making::OF_AUTO_ROUND);
    let kind = kind(&mut fields)?;
    let rest = layout(&mut fields, kind, None)?;
    let extra = fields.get("extra_config").and_then(Value::as_object);
    let mut layers = Vec::new();
    for (name, own) in extra.into_iter().flatten() {
        let own = own.as_object().ok_or_else(|| fields.refused("extra_config", own))?;
        layers.push((name.as_str(), of_layer(own, kind, rest)?));
    }
    fields.done()?;
    if layers.iter().all(|(_, own)| own.is_none_or(|own| own == rest)) {
        return Ok(Scheme::of_all(NAME, rest));
    }
    // Names come before expressions.
    layers.sort_by_key(|(name, _)| name.contains(|c| SPECIAL.contains(c)));
    let mut rules = Rules::of_all(rest);
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

/// Kind of a layer's numbers, and their packing.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Gptq,
    Awq,
    Mx,
    Nv,
}

impl Kind {
    /// Name of the numbers in AutoRound.
    fn data_type(self) -> &'static str {
        match self {
            Self::Gptq | Self::Awq => "int",
            Self::Mx => "mx_fp",
            Self::Nv => "nv_fp",
        }
    }

    /// Names of the packing in AutoRound.
    fn packing_formats(self) -> &'static [&'static str] {
        match self {
            Self::Gptq => &["auto_round:auto_gptq"],
            Self::Awq => &["auto_round:auto_awq"],
            Self::Mx => &["auto_round:llm_compressor", "auto_round:mx_fp"],
            Self::Nv => &["auto_round:llm_compressor", "auto_round:nv_fp"],
        }
    }
}

/// The kind of a packing. Integers without a `packing_format` have GPTQ's.
fn kind(fields: &mut Fields<'_>) -> Result<Kind, SchemeError> {
    let kinds = [Kind::Gptq, Kind::Awq, Kind::Mx, Kind::Nv];
    let data_type = fields.word("data_type")?.unwrap_or_else(|| "int".to_owned());
    let packing = fields.word("packing_format")?;
    let mut of_type = kinds.into_iter().filter(|kind| kind.data_type() == data_type).peekable();
    if of_type.peek().is_none() {
        return Err(fields.refused("data_type", &data_type.into()));
    }
    let is_packed_so = |kind: &Kind| {
        packing.as_ref().is_none_or(|packing| kind.packing_formats().contains(&packing.as_str()))
    };
    of_type.find(is_packed_so).ok_or_else(|| fields.refused("packing_format", &packing.into()))
}

/// An expression must match the whole rest of a name.
fn target(name: &str) -> Result<Target, RuleError> {
    match name.contains(|c| SPECIAL.contains(c)) {
        true => Target::expression(&format!("(?:{name})$")),
        false => Ok(Target::Module(name.to_owned())),
    }
}

/// The layout of a layer with fields of its own; `None`: with sixteen bits it is not quantized.
fn of_layer(own: &Map<String, Value>, kind: Kind, rest: Layout) -> Result<Option<Layout>, SchemeError> {
    if own.get("bits").and_then(Value::as_u64).is_some_and(|bits| bits >= 16) {
        return Ok(None);
    }
    let mut fields = Fields::new("AutoRound extra_config", own);
    fields.pass_over(&making::OF_AUTO_ROUND);
    fields.only("data_type", &[kind.data_type().into()])?;
    let layout = layout(&mut fields, kind, Some(rest))?;
    fields.done()?;
    Ok(Some(layout))
}

fn layout(fields: &mut Fields<'_>, kind: Kind, rest: Option<Layout>) -> Result<Layout, SchemeError> {
    let (of_rest, group_of_rest) = rest.map_or((4, None), |rest| (rest.bits, rest.group));
    let bits: &[usize] = match kind {
        Kind::Gptq => &[2, 4, 8],
        Kind::Mx => &[4, 8],
        Kind::Awq | Kind::Nv => &[4],
    };
    let bits = fields.size("bits", of_rest, bits)?;
    let group = match kind {
        Kind::Mx => fields.only("group_size", &[32.into()]).map(|()| None)?,
        Kind::Nv => fields.only("group_size", &[16.into()]).map(|()| None)?,
        _ if fields.get("group_size").is_some() => fields.group("group_size")?,
        _ => group_of_rest,
    };
    Ok(match kind {
        Kind::Awq => Layout::awq(group),
        Kind::Gptq => Layout::gptq(bits, group),
        Kind::Mx if bits == 8 => Layout::MXFP8,
        Kind::Mx => Layout::MXFP4,
        Kind::Nv => Layout::NVFP4,
    })
}
