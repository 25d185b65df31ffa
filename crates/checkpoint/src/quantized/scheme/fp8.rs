//! The `quantization_config` of FP8 (DeepSeek, transformers) and of FBGEMM. Does not know tensors.

use serde_json::{Map, Value};

use super::super::layout::QuantizedBy;
use super::fields::Fields;
use super::{Scheme, SchemeError};

pub(super) fn scheme(map: &Map<String, Value>) -> Result<Scheme, SchemeError> {
    const NAME: &str = "FP8";
    let mut fields = Fields::new(NAME, map);
    // What transformers would do with the weights.
    fields.pass_over(&["dequantize"]);
    fields.only("fmt", &["e4m3".into(), "float8_e4m3fn".into()])?;
    // Scales are powers of two, or any floats: both are read.
    fields.only("scale_fmt", &["ue8m0".into(), "float".into()])?;
    let by = match fields.block("weight_block_size")? {
        Some(block) => QuantizedBy::Fp8Blocks { block },
        None => QuantizedBy::Fp8Rows,
    };
    fields.done()?;
    Ok(Scheme::of_all(NAME, by))
}

pub(super) fn fbgemm(map: &Map<String, Value>) -> Result<Scheme, SchemeError> {
    const NAME: &str = "FBGEMM FP8";
    Fields::new(NAME, map).done()?;
    Ok(Scheme::of_all(NAME, QuantizedBy::Fp8Rows))
}
