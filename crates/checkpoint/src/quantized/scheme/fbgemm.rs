//! The `quantization_config` of FBGEMM's FP8. Does not know tensors.

use serde_json::{Map, Value};

use super::super::layouts::Layout;
use super::fields::Fields;
use super::{Method, Scheme, SchemeError};

pub(super) const METHOD: Method = Method { names: &["fbgemm_fp8"], read: |fields| scheme(fields).map(Some) };

const NAME: &str = "FBGEMM FP8";

fn scheme(map: &Map<String, Value>) -> Result<Scheme, SchemeError> {
    Fields::new(NAME, map).done()?;
    Ok(Scheme::of_all(NAME, Layout::FP8_ROWS))
}
