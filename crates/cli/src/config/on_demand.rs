//! The `[[on_demand]]` tables: models that are loaded when a request names them. Does not load them.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use throng_gateway::OnDemandModel;

use super::ModelSection;
use crate::args::{self, ModelLength};

/// Maximum number of models.
const MAX_MODELS: usize = 256;

/// A model that is loaded when a request names it. Absent settings are as in `[model]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OnDemandSection {
    /// Name of the model in requests.
    pub name: String,
    /// Folder, file or hub id.
    pub model: String,
    /// Branch, tag or commit of a hub id.
    #[serde(default)]
    pub revision: Option<String>,
    /// Maximum number of tokens of a sequence.
    #[serde(default)]
    pub max_model_len_tokens: Option<ModelLength>,
    /// Format for quantization at load time.
    #[serde(default)]
    pub quantize: Option<args::Quantization>,
    /// Bytes of the KV cache.
    #[serde(default)]
    pub kv_cache_memory_bytes: Option<u64>,
}

impl OnDemandSection {
    /// A hub model under its hub id.
    pub fn of_hub(id: &str) -> Self {
        let (name, model) = (id.to_owned(), id.to_owned());
        Self {
            name,
            model,
            revision: None,
            max_model_len_tokens: None,
            quantize: None,
            kv_cache_memory_bytes: None,
        }
    }

    /// All settings of the model; absent ones are those of `base`, the main model.
    pub fn section(&self, base: &ModelSection) -> ModelSection {
        ModelSection {
            model: Some(self.model.clone()),
            revision: self.revision.clone(),
            served_names: vec![self.name.clone()],
            max_model_len_tokens: self.max_model_len_tokens,
            quantize: self.quantize,
            kv_cache_memory_bytes: self.kv_cache_memory_bytes.or(base.kv_cache_memory_bytes),
            // The base's tokenizer, encoder and template belong to the main model.
            tokenizer: None,
            mmproj: None,
            chat_template: None,
            tool_call_parser: None,
            reasoning_parser: None,
            ..base.clone()
        }
    }

    /// The gateway's view of the model before its first load, with the memory that its weights and KV cache
    /// will take.
    pub fn model(&self, base: &ModelSection) -> OnDemandModel {
        let kv = self.section(base).kv_cache_memory_bytes.unwrap_or_default();
        OnDemandModel { name: self.name.clone(), n_bytes: size_of(&PathBuf::from(&self.model)) + kv }
    }
}

/// Bytes of a file or of a folder's files; 0 if it is not on this machine yet.
fn size_of(path: &Path) -> u64 {
    let bytes = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len());
    match std::fs::read_dir(path) {
        Ok(files) => files.flatten().map(|file| bytes(&file.path())).sum(),
        Err(_) => bytes(path),
    }
}

/// Checks the names, and that they are unique.
pub(super) fn check(models: &[OnDemandSection]) -> Result<(), String> {
    if models.len() > MAX_MODELS {
        return Err(format!("on_demand: at most {MAX_MODELS} models"));
    }
    for (idx, model) in models.iter().enumerate() {
        if model.name.is_empty() || models[..idx].iter().any(|other| other.name == model.name) {
            return Err(format!("on_demand.name = {:?}: must be set, and unique", model.name));
        }
    }
    Ok(())
}
