//! Adapters over the served model: loads those of the configuration, and lets the gateway load others. Does
//! not know requests.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};
use throng_gateway::{AdapterFault, AdapterLoader, AdapterModule, AdapterSettings, LoadedAdapter};
use throng_model::LoadedModel;
use throng_model::adapter::AdapterLimits;

use crate::config::AdapterSection;
use crate::running::{Compute, RunningModel};

/// Loads adapters over the weights of a model.
struct ModelAdapters {
    model: Arc<LoadedModel>,
    compute: Compute,
    limits: AdapterLimits,
}

impl std::fmt::Debug for ModelAdapters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelAdapters").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl AdapterLoader for ModelAdapters {
    fn load(&self, path: &str) -> Result<LoadedAdapter, AdapterFault> {
        match self.compute.load_adapter(&self.model, Path::new(path), self.limits) {
            Ok(loaded) => Ok(LoadedAdapter { adapter: loaded.adapter(), held: loaded.held }),
            Err(error) if error.is_full() => Err(AdapterFault::Full(error.to_string())),
            Err(error) => Err(AdapterFault::Invalid(error.to_string())),
        }
    }
}

/// Loads the adapters of a section until the memory bound is reached; the others are loaded when a request
/// names them.
///
/// # Errors
/// When one is broken, does not fit the model, or has the model's name.
pub fn settings(running: &RunningModel, section: &AdapterSection) -> Result<AdapterSettings> {
    let (model, compute) = (Arc::clone(&running.model), running.compute.clone());
    let loader = ModelAdapters { model, compute, limits: section.limits() };
    let mut modules = Vec::new();
    for module in &section.modules {
        let (name, path) = (module.name.clone(), module.path.clone());
        if running.names.contains(&name) {
            bail!("the adapter {name:?} has the name of the model");
        }
        let loaded = match loader.load(&path) {
            Ok(loaded) => Some(loaded),
            Err(AdapterFault::Full(reason)) => {
                tracing::warn!("the adapter {name:?} is loaded when a request names it: {reason}");
                None
            }
            Err(AdapterFault::Invalid(reason)) => bail!("the adapter {name:?} cannot be loaded: {reason}"),
        };
        modules.push(AdapterModule { name, path, loaded });
    }
    if !modules.is_empty() {
        let names: Vec<_> = modules.iter().map(|module| module.name.as_str()).collect();
        tracing::info!("adapters: {}", names.join(", "));
    }
    let allow_runtime_updates = section.allow_runtime_lora_updating;
    Ok(AdapterSettings { loader: Arc::new(loader), modules, allow_runtime_updates })
}
