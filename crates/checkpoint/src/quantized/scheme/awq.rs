//! The `quantization_config` of AWQ (AutoAWQ, GPTQModel). Does not know tensors.

use serde_json::{Map, Value};

use super::super::layouts::Layout;
use super::fields::Fields;
use super::{Method, Scheme, SchemeError, making};

pub(super) const METHOD: Method = Method { names: &["awq"], read: |fields| scheme(fields).map(Some) };

const NAME: &str = "AWQ";
/// The formats of AWQ, by the names of its kernels.
pub(super) const KERNELS: [&str; 2] = ["gemm", "gemv"];

pub(super) fn scheme(map: &Map<String, Value>) -> Result<Scheme, SchemeError> {
    let mut fields = Fields::new(NAME, map);
    making::pass_over(&mut fields)?;
    fields.size("bits", 4, &[4])?;
    fields.size("w_bit", 4, &[4])?;
    fields.only("method", &["awq".into()])?;
    fields.only("desc_act", &[false.into()])?;
    let mut kernel = None;
    for name in ["version", "format", "checkpoint_format"] {
        let Some(found) = fields.word(name)? else { continue };
        if !KERNELS.contains(&found.as_str()) || kernel.as_ref().is_some_and(|k| *k != found) {
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
    let layout = match kernel.as_deref() {
        Some("gemv") => Layout::awq_gemv(group),
        _ => Layout::awq(group),
    };
    Ok(Scheme::of_all(NAME, layout))
}
