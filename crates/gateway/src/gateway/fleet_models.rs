//! Adds the models of workers and upstream engines to a gateway. Does not know how they are reached.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use throng_fleet::replica::{Links, Replica, Replicas};
use throng_fleet::upstream::{MAX_MODELS, Upstream, UpstreamModel, UpstreamModels};
use throng_fleet::{Fleet, FleetError, FleetModels, RemoteModel, ReplicaConfig, Secret};
use throng_wire::{ArtifactKind, Description};

use super::{GatewayError, Loading, check_names};
use crate::config::ModerationConfig;
use crate::learned_model::learn;
use crate::router::Route;
use crate::served_model::ServedModel;

impl Loading {
    /// Follows these workers and engines, and adds their models when they are reported. `default_token` is
    /// for workers without a token of their own.
    ///
    /// # Errors
    /// When an address, a region, a token or a certificate cannot be used, or there are too many.
    pub fn start_fleet(
        &self,
        replicas: &[ReplicaConfig],
        default_token: Option<&Secret>,
    ) -> Result<Fleet, FleetError> {
        self.progress.expect_fleet();
        Fleet::start(replicas, default_token, Arc::new(self.clone()))
    }

    /// Adds a model to the served ones. The first one ends the loading.
    fn add_route(&self, model: ServedModel, first: Arc<dyn Replica>) -> Result<Route, GatewayError> {
        let app = self.app();
        let routes = app.models.router.routes();
        let is_taken = |name: &&String| {
            routes.iter().any(|other| other.model.answers_to(name))
                || self.shared.upstreams.find(name).is_some()
        };
        if let Some(name) = model.names.iter().find(is_taken) {
            return Err(GatewayError::ModelName { name: name.clone() });
        }
        check_names(std::slice::from_ref(&model))?;
        let route = app.add_remote(model, first);
        if routes.is_empty() {
            self.serve(app.clone());
        }
        Ok(route)
    }
}

impl FleetModels for Loading {
    fn workers(&self) -> &Arc<Links> {
        &self.shared.workers
    }

    fn upstreams(&self) -> &Arc<UpstreamModels> {
        &self.shared.upstreams
    }

    fn check_region(&self, region: &str) -> Result<(), String> {
        self.config.routing.check_region(region)
    }

    fn add_remote(
        &self,
        description: Description,
        artifacts: Vec<(ArtifactKind, Bytes)>,
        first: Arc<dyn Replica>,
    ) -> BoxFuture<'_, Result<Box<dyn RemoteModel>, String>> {
        async move {
            let model = learn(description, artifacts).await?;
            let route = self.add_route(model, first).map_err(|error| error.to_string())?;
            Ok(Box::new(route) as Box<dyn RemoteModel>)
        }
        .boxed()
    }

    /// Adds the models of an upstream engine; none if moderation is on, since it does not cover their
    /// prompts and answers.
    fn add_upstream(
        &self,
        names: Vec<String>,
        upstream: Arc<Upstream>,
        model_there: String,
    ) -> Result<(), String> {
        if self.config.moderation != ModerationConfig::default() {
            return Err(
                "moderation is on, which prompts and answers of upstream engines do not pass".to_owned()
            );
        }
        let app = self.app();
        let _joining = self.shared.upstreams.joining();
        let known = self.shared.upstreams.now();
        if let Some(model) = known.iter().find(|model| model.names == names) {
            model.add(upstream, model_there);
            return Ok(());
        }
        let routes = app.models.router.routes();
        let is_taken = |name: &&String| {
            name.is_empty()
                || known.iter().any(|model| model.answers_to(name))
                || routes.iter().any(|route| route.model.answers_to(name))
        };
        if let Some(name) = names.iter().find(is_taken) {
            return Err(format!("the name {name:?} is empty, or another model has it"));
        }
        if known.len() >= MAX_MODELS {
            return Err(format!("there are {MAX_MODELS} models of upstream engines already"));
        }
        // Its counters are there, at 0, before the first request.
        let _ = app.observed.metrics.of_upstream(&names[0]);
        let model = UpstreamModel::new(names, &self.config.routing.settings());
        model.add(upstream, model_there);
        self.shared.upstreams.add(Arc::new(model));
        self.serve(app.clone());
        Ok(())
    }

    fn is_settled(&self) -> bool {
        let has_models = self.loaded.get().is_some_and(|app| !app.models.router.routes().is_empty());
        let upstreams = &self.shared.upstreams;
        (has_models || !upstreams.now().is_empty()) && !upstreams.are_starting()
    }
}

impl RemoteModel for Route {
    fn replicas(&self) -> &Replicas {
        Route::replicas(self)
    }

    fn worker_joined(&self, fingerprint: &str) {
        self.model.worker_joined(fingerprint);
    }
}
