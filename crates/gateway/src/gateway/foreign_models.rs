//! Foreign engines that come to a gateway. Does not know how they are asked.

use std::sync::Arc;

use throng_core::health::State as Health;

use super::Loading;
use crate::config::{ModerationConfig, RoutingConfig};
use crate::foreign::{ForeignModel, ForeignModels, MAX_MODELS, Upstream};
use crate::metrics::ModelLabels;

impl Loading {
    /// The models of foreign engines.
    pub(crate) fn foreign(&self) -> &Arc<ForeignModels> {
        &self.shared.foreign
    }

    /// How requests are distributed.
    pub(crate) fn routing(&self) -> &RoutingConfig {
        &self.config.routing
    }

    /// Lets a foreign engine serve a model, which other engines may serve too. The first model ends the loading.
    ///
    /// # Errors
    /// Why not: a name is taken, there are too many models, or prompts and answers are to be moderated, which those of foreign engines
    /// are not.
    pub(crate) fn add_foreign(
        &self,
        names: Vec<String>,
        upstream: Arc<Upstream>,
        model_there: String,
    ) -> Result<(), String> {
        if self.config.moderation != ModerationConfig::default() {
            return Err(
                "moderation is on, which prompts and answers of foreign engines do not pass".to_owned()
            );
        }
        let app = self.app();
        let known = self.shared.foreign.now();
        if let Some(model) = known.iter().find(|model| model.names == names) {
            model.add(upstream, model_there);
            return Ok(());
        }
        let routes = app.router.routes();
        let is_taken = |name: &&String| {
            name.is_empty()
                || known.iter().any(|model| model.answers_to(name))
                || routes.iter().any(|route| route.model.answers_to(name))
        };
        if let Some(name) = names.iter().find(is_taken) {
            return Err(format!("the name {name:?} is empty, or another model has it"));
        }
        if known.len() >= MAX_MODELS {
            return Err(format!("there are {MAX_MODELS} models of foreign engines already"));
        }
        let metrics = app.metrics.of_model(&ModelLabels::of_model(&names[0]));
        let model = ForeignModel::new(names, metrics, &self.config.routing);
        model.add(upstream, model_there);
        self.shared.foreign.add(Arc::new(model));
        self.serve(app.clone());
        Ok(())
    }
    /// Whether a first model is served, and all engines of other makers have answered or failed.
    pub(crate) fn is_settled(&self) -> bool {
        let engines = self.shared.foreign.now();
        let is_starting = |model: &Arc<ForeignModel>| {
            let replicas = model.replicas();
            replicas.iter().any(|replica| model.dispatcher.state(replica.id).0 == Health::Starting)
        };
        let has_models = self.loaded.get().is_some_and(|app| !app.router.routes().is_empty());
        (has_models || !engines.is_empty()) && !engines.iter().any(is_starting)
    }
}
