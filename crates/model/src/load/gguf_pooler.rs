//! Reads the kind of pooling from the metadata and the tensors of a GGUF file, as llama.cpp's converter
//! writes them. Does not know how anything is pooled.

use std::path::Path;

use super::LoadError;
use super::json_file::malformed;
use crate::config::DecoderConfig;
use crate::pooling::{
    ClassifierActivation, HeadActivation, HeadLayer, Pooler, Pooling, PoolingConfig, PoolingOutput, Prompts,
};
use throng_checkpoint::TensorSource;
use throng_checkpoint::gguf::{Gguf, GgufValue};

/// The dense layers of EmbeddingGemma.
const DENSE: [&str; 2] = ["dense_2", "dense_3"];
/// The layers of a classifier: one before the last, with a norm after it, and the last.
const CLASSIFIER: &str = "cls.output";
const CLASSIFIER_DENSE: &str = "cls";
const CLASSIFIER_NORM: &str = "cls.norm";

/// `pooling_type` in llama.cpp.
const NONE: u64 = 0;
const MEAN: u64 = 1;
const FIRST: u64 = 2;
const LAST: u64 = 3;
const RANK: u64 = 4;

/// The pooler of a file; `None` where the model generates text.
pub(super) fn of_file(path: &Path, gguf: &Gguf, config: &DecoderConfig) -> Result<Option<Pooler>, LoadError> {
    let pooling_under = |key: &str| match gguf.metadata().get(&own_key(gguf, key)) {
        None => Ok(None),
        Some(value) => match value.as_u64() {
            Some(NONE | RANK) => Ok(None),
            Some(MEAN) => Ok(Some(Pooling::Mean)),
            Some(FIRST) => Ok(Some(Pooling::First)),
            Some(LAST) => Ok(Some(Pooling::Last)),
            _ => Err(malformed(path, format!("the pooling {value:.60?} of {key} is not supported"))),
        },
    };
    let pooling = pooling_under("pooling_type")?;
    let has = |name: &str| gguf.tensor(&format!("{name}.weight")).is_some();
    if has(CLASSIFIER) {
        let pooling = pooling_under("classifier.pooling_type")?.or(pooling);
        return classifier(path, gguf, config, pooling).map(Some);
    }
    // As of a folder that does not say it; decoders that do not say it generate text.
    let Some(pooling) = pooling.or(config.encoder.is_some().then_some(Pooling::Mean)) else {
        return Ok(None);
    };
    let dense = DENSE.into_iter().filter(|name| has(name));
    let layers = dense.map(|name| HeadLayer::new(name, HeadActivation::Identity)).collect();
    // What llama.cpp's server gives, and what nearly all models were trained for.
    let config = pooling_config(pooling, true, PoolingOutput::Embedding);
    Ok(Some(Pooler::new(config, layers)))
}

fn classifier(
    path: &Path,
    gguf: &Gguf,
    config: &DecoderConfig,
    pooling: Option<Pooling>,
) -> Result<Pooler, LoadError> {
    let has = |name: &str| gguf.tensor(&format!("{name}.weight")).is_some();
    let default = match config.family {
        "modernbert" => Pooling::Mean,
        _ if config.encoder.is_some() => Pooling::First,
        _ => Pooling::Last,
    };
    let mut layers = Vec::new();
    if has(CLASSIFIER_DENSE) {
        let activation = match config.family {
            "modernbert" => HeadActivation::Gelu,
            _ => HeadActivation::Tanh,
        };
        let norm = has(CLASSIFIER_NORM).then(|| CLASSIFIER_NORM.to_owned());
        layers.push(HeadLayer { norm, ..HeadLayer::new(CLASSIFIER_DENSE, activation) });
    } else if config.encoder.is_some() {
        // Converters leave the pooler of BERT out.
        let reason = format!("the layer {CLASSIFIER_DENSE:?} before the classifier is not in the file");
        return Err(malformed(path, reason));
    }
    layers.push(HeadLayer::new(CLASSIFIER, HeadActivation::Identity));
    let names = labels(gguf);
    let activation =
        if names.len() == 1 { ClassifierActivation::Sigmoid } else { ClassifierActivation::Softmax };
    let output = PoolingOutput::Labels { names, activation };
    Ok(Pooler::new(pooling_config(pooling.unwrap_or(default), false, output), layers))
}

/// The labels that the file names, or one for each row of the classifier.
fn labels(gguf: &Gguf) -> Vec<String> {
    let named = gguf.metadata().strings(&own_key(gguf, "classifier.output_labels")).ok().flatten();
    if let Some(named) = named.filter(|named| !named.is_empty()) {
        return named.iter().map(str::to_owned).collect();
    }
    let tensor = gguf.tensor(&format!("{CLASSIFIER}.weight"));
    // A matrix of one row may be stored as a vector.
    let n_rows = tensor.map_or(1, |tensor| if tensor.shape.len() == 1 { 1 } else { tensor.shape[0] });
    (0..n_rows.min(1 << 16)).map(|idx| format!("LABEL_{idx}")).collect()
}

/// A key under the prefix of the file's architecture.
fn own_key(gguf: &Gguf, key: &str) -> String {
    let architecture = gguf.metadata().get("general.architecture").and_then(GgufValue::as_str);
    format!("{}.{key}", architecture.unwrap_or_default())
}

fn pooling_config(pooling: Pooling, normalizes: bool, output: PoolingOutput) -> PoolingConfig {
    PoolingConfig { pooling, normalizes, max_tokens: None, output, prompts: Prompts::default() }
}
