//! Loads the models of `[[on_demand]]` for the gateway, and downloads further ones from the hub if the
//! operator allows that. Does not decide when.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use throng_engine::EngineHandle;
use throng_gateway::{
    FileProgress, ModelLoader, OnDemandConfig, OnDemandModel, OnDemandModels, PullFault, ServedModel,
};

use super::adapters::ChangedAdapters;
use super::{load, served_main, served_model};
use crate::config::{AdapterSection, EngineSection, ModelSection, OnDemandSection};
use crate::error_chain::in_full;
use crate::model_cache::models_in;
use throng_hub::{HubError, HubId, HubSettings, Watch, fetch_watched};

#[derive(Debug)]
struct Loader {
    base: ModelSection,
    engine: EngineSection,
    models: Vec<OnDemandSection>,
    max_pulled_bytes: Option<u64>,
    main: MainModel,
    /// Paths of the downloaded models, so that loading one does not fetch a newer version.
    pulled: Mutex<BTreeMap<String, PathBuf>>,
}

/// Settings outside of the section `[model]` with which the main model is loaded again.
#[derive(Debug, Clone)]
pub struct MainModel {
    /// Its adapters.
    pub adapters: AdapterSection,
    /// The adapters that clients have left.
    pub changed_adapters: ChangedAdapters,
    /// File of the recording of its engine.
    pub record: Option<PathBuf>,
    /// Whether clients may ask for its tokenizer.
    pub shows_tokenizer: bool,
    /// Its engine, to be ended with the process.
    pub engine: Arc<Mutex<Option<EngineHandle>>>,
}

/// Maximum number of downloaded models.
const MAX_PULLED_MODELS: usize = 256;

/// The models of `[[on_demand]]`, none of them loaded yet; the main model is added once it is loaded.
pub fn models(
    config: OnDemandConfig,
    models: Vec<OnDemandSection>,
    (base, engine): (&ModelSection, &EngineSection),
    main: MainModel,
) -> Arc<OnDemandModels> {
    let known: Vec<_> = models.iter().map(|model| model.model(base)).collect();
    let max_pulled_bytes = config.max_pulled_bytes;
    let (base, engine, pulled) = (base.clone(), engine.clone(), Mutex::default());
    let loader = Loader { base, engine, models, max_pulled_bytes, main, pulled };
    OnDemandModels::new(config, known, Arc::new(loader))
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
            let running =
                load(section.clone(), engine, None, |_, _| {}).await.map_err(|error| in_full(&error))?;
            tracing::info!("{}: {}", running.names[0], running.describe_kv_cache());
            Ok(served_model(running, &section))
        }
        .boxed()
    }

    fn load_main(&self) -> BoxFuture<'static, Result<ServedModel, String>> {
        let (section, engine, main) = (self.base.clone(), self.engine.clone(), self.main.clone());
        async move {
            // The engine that has ended still holds the file of its blocks, which this one goes on with.
            drop(main.engine.lock().unwrap_or_else(PoisonError::into_inner).take());
            let loaded = async {
                let running = load(section.clone(), engine, None, |_, _| {}).await?;
                // Another engine, with times of its own: the recording before is kept beside this one.
                running.record(main.record.as_deref())?;
                *main.engine.lock().unwrap_or_else(PoisonError::into_inner) = Some(running.engine.clone());
                served_main(running, &section, &main).await
            };
            loaded.await.map_err(|error| in_full(&error))
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
