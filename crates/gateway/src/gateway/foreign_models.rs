//! Foreign engines that come to a gateway. Does not know how they are asked.

use std::sync::Arc;

use super::Loading;
use crate::config::ModerationConfig;
use crate::foreign::{ForeignModel, ForeignModels, MAX_MODELS, Upstream};
use crate::metrics::ModelLabels;

impl Loading {
    /// The models of foreign engines.
    pub(crate) fn foreign(&self) -> &Arc<ForeignModels> {
        &self.shared.foreign
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
        let model = ForeignModel::new(names, metrics, self.config.routing.policy.0);
        model.add(upstream, model_there);
        self.shared.foreign.add(Arc::new(model));
        self.serve(app.clone());
        Ok(())
    }
}
