//! The `quantization_config` of FP8, as DeepSeek and transformers write it. Does not know tensors.

use serde_json::{Map, Value};

use super::super::layouts::Layout;
use super::fields::Fields;
use super::{Method, Scheme, SchemeError};

pub(super) const METHOD: Method = Method { names: &["fp8"], read: |fields| scheme(fields).map(Some) };

const NAME: &str = "FP8";

fn scheme(map: &Map<String, Value>) -> Result<Scheme, SchemeError> {
    let mut fields = Fields::new(NAME, map);
    // What transformers would do with the weights.
    fields.pass_over(&["dequantize"]);
    fields.only("fmt", &["e4m3".into(), "float8_e4m3fn".into()])?;
    // Scales are powers of two, or any floats: both are read.
    fields.only("scale_fmt", &["ue8m0".into(), "float".into()])?;
    let layout = fields.block("weight_block_size")?.map_or(Layout::FP8_ROWS, Layout::fp8_blocks);
    fields.done()?;
    Ok(Scheme::of_all(NAME, layout))
}
