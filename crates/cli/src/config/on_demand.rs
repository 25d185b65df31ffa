//! The `[[on_demand]]` tables: models that come when they are asked for. Does not load them.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use throng_gateway::OnDemandModel;

use super::ModelSection;
use crate::args::{self, ModelLength};

/// Most such models.
const MAX_MODELS: usize = 256;

/// A model that is loaded when it is asked for. What is not said here is as `[model]` says it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OnDemandSection {
    /// What requests call it.
    pub name: String,
    /// A folder, a file or a hub id.
    pub model: String,
    /// The branch, tag or commit of a hub id.
    #[serde(default)]
    pub revision: Option<String>,
    /// Most tokens of one sequence.
    #[serde(default)]
    pub max_model_len_tokens: Option<ModelLength>,
    /// The format for quantization at load time.
    #[serde(default)]
    pub quantize: Option<args::Quantization>,
    /// Memory for keys and values.
    #[serde(default)]
    pub kv_cache_memory_bytes: Option<u64>,
}

impl OnDemandSection {
    /// A model of the hub under its own name.
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

    /// All settings of the model, over those of the model that is always there.
    pub fn section(&self, base: &ModelSection) -> ModelSection {
        ModelSection {
            model: Some(self.model.clone()),
            revision: self.revision.clone(),
            served_names: vec![self.name.clone()],
            max_model_len_tokens: self.max_model_len_tokens,
            quantize: self.quantize,
            kv_cache_memory_bytes: self.kv_cache_memory_bytes.or(base.kv_cache_memory_bytes),
            // These belong to the other model's tokenizer and template.
            tokenizer: None,
            chat_template: None,
            tool_call_parser: None,
            reasoning_parser: None,
            ..base.clone()
        }
    }

    /// The model as the gateway knows it before it is first loaded: it will hold its files and its keys and
    /// values.
    pub fn model(&self, base: &ModelSection) -> OnDemandModel {
        let kv = self.section(base).kv_cache_memory_bytes.unwrap_or_default();
        OnDemandModel { name: self.name.clone(), n_bytes: size_of(&PathBuf::from(&self.model)) + kv }
    }
}

/// The bytes of a file, or of the files of a folder; 0 for what is not on this machine yet.
fn size_of(path: &Path) -> u64 {
    let bytes = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len());
    match std::fs::read_dir(path) {
        Ok(files) => files.flatten().map(|file| bytes(&file.path())).sum(),
        Err(_) => bytes(path),
    }
}

/// Checks the names, and that none is used twice.
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
