//! A folder whose `model_type` belongs to no family: read as Llama, and refused if it has any other setting
//! or tensor. Does not know families.

use serde_json::{Map, Value};

use crate::arch::{Architecture, ConfigError};
use crate::tensor_role::tensor_roles;
use throng_checkpoint::TensorSource;

/// The matrices of a layer that may be quantized.
const MATRICES: [&str; 7] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

/// The architecture of a model without a family.
///
/// # Errors
/// An error that names the first key or tensor that is not understood.
pub(super) fn architecture(
    json: &[u8],
    config: &Map<String, Value>,
    tensors: &dyn TensorSource,
) -> Result<Architecture, ConfigError> {
    let architecture = Architecture::of_unnamed(json, tensors)?;
    let model_type = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let predicts_further = config.contains_key("num_nextn_predict_layers");
    if let Some(name) = unread(&architecture, tensors, predicts_further) {
        return Err(ConfigError::UnknownTensor(name).of_unnamed(model_type));
    }
    tracing::warn!(
        "the family {model_type:?} is not known by name: it is computed like Llama, with what its files say"
    );
    Ok(architecture)
}

/// The first unread tensor, except those of layers that predict further tokens and those that only repeat
/// computed data.
fn unread(architecture: &Architecture, tensors: &dyn TensorSource, predicts_further: bool) -> Option<String> {
    let roles = tensor_roles(architecture, tensors);
    let n_layers = architecture.config.layers.len();
    let is_beside = |name: &str| {
        let layer =
            name.strip_prefix(architecture.names.layer_prefix).and_then(|name| name.split('.').next());
        let is_further = layer.and_then(|idx| idx.parse().ok()).is_some_and(|idx: usize| idx >= n_layers);
        name.ends_with("rotary_emb.inv_freq") || name == "lm_head.weight" || (predicts_further && is_further)
    };
    // No norm of this kind has a bias.
    let is_read = |name: &str| roles.contains_key(name) && !name.ends_with("norm.bias");
    let is_matrix = |name: &str| MATRICES.iter().any(|matrix| name.ends_with(&format!(".{matrix}.weight")));
    let stored = tensors.names().into_iter().filter(|name| !is_read(name));
    let encoded = tensors.encoded_names();
    let encoded = encoded.iter().map(String::as_str).filter(|name| !is_matrix(name));
    let mut unread = stored.chain(tensors.byte_names()).chain(encoded).filter(|name| !is_beside(name));
    unread.next().map(str::to_owned)
}
