//! Loads the models of `[[on_demand]]` for the gateway. Does not know when.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use throng_gateway::{ModelLoader, OnDemandConfig, OnDemandModels, ServedModel};

use super::{load, served_model};
use crate::config::{EngineSection, ModelSection, OnDemandSection};
use crate::error_chain::in_full;

#[derive(Debug)]
struct Loader {
    base: ModelSection,
    engine: EngineSection,
    models: Vec<OnDemandSection>,
}

/// The models of `[[on_demand]]`, none of which is loaded; `None` where there are none.
pub fn models(
    config: OnDemandConfig,
    models: Vec<OnDemandSection>,
    (base, engine): (&ModelSection, &EngineSection),
) -> Option<Arc<OnDemandModels>> {
    let known: Vec<_> = models.iter().map(|model| model.model(base)).collect();
    let loader = Loader { base: base.clone(), engine: engine.clone(), models };
    (!known.is_empty()).then(|| OnDemandModels::new(config, known, Arc::new(loader)))
}

impl ModelLoader for Loader {
    fn load(&self, name: &str) -> BoxFuture<'static, Result<ServedModel, String>> {
        let section = self.models.iter().find(|model| model.name == name);
        let section = section.map(|model| model.section(&self.base));
        let mut engine = self.engine.clone();
        // A draft model is that of the other model.
        engine.speculation = Default::default();
        async move {
            let section = section.ok_or("there is no such model")?;
            let running = load(section.clone(), engine, |_, _| {}).await.map_err(|error| in_full(&error))?;
            tracing::info!("{}: {}", running.names[0], running.describe_kv_cache());
            Ok(served_model(running, &section))
        }
        .boxed()
    }
}
