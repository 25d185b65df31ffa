//! Adapters over the served model: loads those of the configuration, and lets the gateway load others. Does
//! not know requests.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use throng_gateway::{AdapterFault, AdapterLoader, AdapterModule, AdapterSettings, LoadedAdapter};
use throng_hub::HubId;
use throng_model::LoadedModel;
use throng_model::adapter::AdapterLimits;

use crate::config::AdapterSection;
use crate::running::{Compute, RunningModel};
use crate::source::{HubPlace, ModelSource};

/// Names and folders of the adapters that clients have left, from their first change on. They outlive the
/// model, which may sleep.
#[derive(Debug, Clone, Default)]
pub struct ChangedAdapters(Arc<Mutex<Option<NamesAndFolders>>>);

type NamesAndFolders = Vec<(String, String)>;

impl ChangedAdapters {
    fn get(&self) -> Option<NamesAndFolders> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, adapters: Vec<(String, String)>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(adapters);
    }
}

/// Loads adapters over the weights of a model.
struct ModelAdapters {
    model: Arc<LoadedModel>,
    compute: Compute,
    limits: AdapterLimits,
    changed: ChangedAdapters,
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

    fn note_changed(&self, adapters: Vec<(String, String)>) {
        self.changed.set(adapters);
    }
}

/// The folder of an adapter that the operator names: a path on this machine, else a hub id.
fn folder(given: &str) -> Result<String> {
    if Path::new(given).exists() || HubId::parse(given).is_none() {
        return Ok(given.to_owned());
    }
    match ModelSource::find(&HubPlace { model: Some(given), ..HubPlace::default() })? {
        ModelSource::Path { path, .. } => Ok(path.display().to_string()),
        ModelSource::BuiltIn(_) => Ok(given.to_owned()),
    }
}

/// Loads the adapters of a section until the memory bound is reached; the others are loaded when a request
/// names them. After clients have changed them, theirs are loaded when a request names them.
///
/// # Errors
/// When one is broken, does not fit the model, or has the model's name.
pub fn settings(
    running: &RunningModel,
    section: &AdapterSection,
    changed: &ChangedAdapters,
) -> Result<AdapterSettings> {
    let (model, compute) = (Arc::clone(&running.model), running.compute.clone());
    let loader = ModelAdapters { model, compute, limits: section.limits(), changed: changed.clone() };
    let allow_runtime_updates = section.allow_runtime_lora_updating;
    if let Some(left) = changed.get() {
        let module = |(name, path)| AdapterModule { name, path, loaded: None };
        let modules = left.into_iter().map(module).collect();
        return Ok(AdapterSettings { loader: Arc::new(loader), modules, allow_runtime_updates });
    }
    let mut modules = Vec::new();
    for module in &section.modules {
        let name = module.name.clone();
        let path = folder(&module.path).with_context(|| format!("the adapter {name:?}"))?;
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
    Ok(AdapterSettings { loader: Arc::new(loader), modules, allow_runtime_updates })
}
