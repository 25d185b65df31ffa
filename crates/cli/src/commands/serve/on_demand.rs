//! Loads the models of `[[on_demand]]` for the gateway, and downloads further ones from the hub if the
//! operator allows that. Does not decide when.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use throng_gateway::{
    FileProgress, ModelLoader, OnDemandConfig, OnDemandModel, OnDemandModels, PullFault, ServedModel,
};

use super::{load, served_model};
use crate::config::{EngineSection, ModelSection, OnDemandSection};
use crate::error_chain::in_full;
use crate::model_cache::models_in;
use throng_hub::{HubError, HubId, HubSettings, Watch, fetch_watched};

#[derive(Debug)]
struct Loader {
    base: ModelSection,
    engine: EngineSection,
    models: Vec<OnDemandSection>,
    max_pulled_bytes: Option<u64>,
    /// Paths of the downloaded models, so that loading one does not fetch a newer version.
    pulled: Mutex<BTreeMap<String, PathBuf>>,
}

/// Maximum number of downloaded models.
const MAX_PULLED_MODELS: usize = 256;

/// The models of `[[on_demand]]`, none of them loaded yet. `None` if there are none and downloads are not
/// allowed.
pub fn models(
    config: OnDemandConfig,
    models: Vec<OnDemandSection>,
    (base, engine): (&ModelSection, &EngineSection),
) -> Option<Arc<OnDemandModels>> {
    let known: Vec<_> = models.iter().map(|model| model.model(base)).collect();
    let max_pulled_bytes = config.max_pulled_bytes;
    let (base, engine, pulled) = (base.clone(), engine.clone(), Mutex::default());
    let loader = Loader { base, engine, models, max_pulled_bytes, pulled };
    let is_needed = !known.is_empty() || max_pulled_bytes.is_some();
    is_needed.then(|| OnDemandModels::new(config, known, Arc::new(loader)))
}

impl Loader {
    /// The section of a model: from the file, or of a downloaded hub model.
    fn model(&self, name: &str) -> OnDemandSection {
        let named = self.models.iter().find(|model| model.name == name);
        let mut model = named.cloned().unwrap_or_else(|| OnDemandSection::of_hub(name));
        if let Some(path) = self.pulled.lock().unwrap_or_else(PoisonError::into_inner).get(name) {
            model.model = path.display().to_string();
        }
        model
    }

    fn settings(&self) -> HubSettings {
        let mut settings = HubSettings::from_env(|name| std::env::var(name).ok());
        if let Some(folder) = &self.base.download_dir {
            settings.cache.clone_from(folder);
        }
        settings
    }
}

impl ModelLoader for Loader {
    fn load(&self, name: &str) -> BoxFuture<'static, Result<ServedModel, String>> {
        let section = self.model(name).section(&self.base);
        let mut engine = self.engine.clone();
        // The configured draft model belongs to the main model.
        engine.speculation = Default::default();
        async move {
            let running = load(section.clone(), engine, |_, _| {}).await.map_err(|error| in_full(&error))?;
            tracing::info!("{}: {}", running.names[0], running.describe_kv_cache());
            Ok(served_model(running, &section))
        }
        .boxed()
    }

    fn pull(&self, name: &str, report: &mut dyn FnMut(FileProgress)) -> Result<OnDemandModel, PullFault> {
        let bound = self.max_pulled_bytes.ok_or(PullFault::Forbidden)?;
        let named = self.models.iter().find(|model| model.name == name);
        let mut model = named.cloned().unwrap_or_else(|| OnDemandSection::of_hub(name));
        // A name is never a path or another URL: clients could read this machine's files or its network
        // with those.
        let id = HubId::parse(&model.model).ok_or_else(|| PullFault::NotAModel(name.to_owned()))?;
        let settings = self.settings();
        let cached = models_in(&settings.cache).map_err(|error| PullFault::Failed(format!("{error:#}")))?;
        let held: u64 = cached.iter().map(|model| model.n_bytes).sum();
        let report = &mut |file: &str, done_bytes, total_bytes| {
            report(FileProgress { file: file.into(), done_bytes, total_bytes });
        };
        let watch = Watch { max_bytes: bound.saturating_sub(held), report };
        let path = fetch_watched(&id, &settings, watch).map_err(fault)?;
        model.model = path.display().to_string();
        let mut pulled = self.pulled.lock().unwrap_or_else(PoisonError::into_inner);
        if pulled.len() == MAX_PULLED_MODELS && !pulled.contains_key(name) {
            return Err(PullFault::TooMany(MAX_PULLED_MODELS));
        }
        pulled.insert(name.to_owned(), path);
        Ok(model.model(&self.base))
    }
}

fn fault(error: HubError) -> PullFault {
    match error {
        HubError::NoRoom { file, n_bytes, left_bytes } => PullFault::NoRoom { file, n_bytes, left_bytes },
        HubError::NotAModel { model } => PullFault::NotAModel(model),
        error => PullFault::Failed(error.to_string()),
    }
}
