//! Errors of adapters.

use std::path::PathBuf;

use crate::backend::BackendError;
use throng_checkpoint::FileChanged;
use throng_checkpoint::safetensors::SafetensorsError;

/// Reason why an adapter was not loaded.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message says what each field is")]
pub enum AdapterError {
    #[error("adapters are not supported over a model that is divided over processes")]
    Divided,
    #[error("{} has no {file}{hint}", folder.display())]
    NoFile { folder: PathBuf, file: &'static str, hint: &'static str },
    #[error("cannot read {}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    #[error(transparent)]
    Changed(#[from] FileChanged),
    #[error("adapter_config.json: {0}")]
    Config(String),
    #[error("tensor {tensor}: adapting {module} is not supported (supported: {supported})")]
    Module { tensor: String, module: String, supported: String },
    #[error(
        "tensor {tensor} is no part of a LoRA adapter that is supported: its name must end in .lora_A.weight or .lora_B.weight"
    )]
    Tensor { tensor: String },
    #[error(
        "tensor {tensor} is in layer {layer_idx}, and the model has {n_layers} layers: the adapter is of another model{base}"
    )]
    Layer { tensor: String, layer_idx: usize, n_layers: usize, base: String },
    #[error("tensor {tensor} is missing, and its other half is there")]
    Half { tensor: String },
    #[error("tensor {tensor}: expected shape {expected:?}, found {found:?}{hint}")]
    Shape { tensor: String, expected: Vec<usize>, found: Vec<usize>, hint: String },
    #[error("tensor {tensor} has a number that is not finite")]
    NotFinite { tensor: String },
    #[error("layer {layer_idx} adapts {} and {}, which are one another's parts", modules[0], modules[1])]
    Twice { layer_idx: usize, modules: [&'static str; 2] },
    #[error("the adapter has no matrices")]
    Empty,
    #[error("the adapter has rank {rank}, and the most allowed is {max} (--max-lora-rank)")]
    Rank { rank: usize, max: usize },
    #[error("{n_loaded} adapters are loaded, as many as --max-loras allows")]
    TooMany { n_loaded: usize },
    #[error(
        "the adapter takes {n_bytes} bytes, and {n_free} of the {max} for adapters are free (--max-lora-memory)"
    )]
    NoRoom { n_bytes: usize, n_free: usize, max: usize },
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl AdapterError {
    /// Whether the same adapter may be loaded once others are gone.
    pub fn is_full(&self) -> bool {
        match self {
            Self::TooMany { .. } => true,
            Self::NoRoom { n_bytes, max, .. } => n_bytes <= max,
            _ => false,
        }
    }
}
