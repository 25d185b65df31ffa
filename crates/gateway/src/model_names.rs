//! Models by the names that a key may use: looked up, loaded for a request, and listed. Does not know HTTP.

use std::borrow::Cow;
use std::sync::Arc;

use crate::app::App;
use crate::on_demand::{Presence, Serving};
use crate::router::Route;
use throng_api::ApiError;
use throng_auth::Tenant;

impl App {
    /// The model named `name`, or the only one when no name is given.
    ///
    /// # Errors
    /// Errors of [`Router::find_permitted`](crate::router::Router::find_permitted) with the names of the
    /// models that the key may use.
    pub fn find_model(&self, key_holder: &Tenant, name: Option<&str>) -> Result<Route, ApiError> {
        self.models.router.find_permitted(key_holder, name).map_err(|error| match (error.code(), name) {
            ("model_not_found", Some(_)) => error.with_models(&self.usable_names(key_holder)),
            ("permission_denied", Some(name)) => self.not_permitted(key_holder, name),
            _ => error,
        })
    }

    /// Loads the model that `named` returns. It is not unloaded while the result is held. Only permitted
    /// models are loaded; others are refused later, when the model is looked up.
    ///
    /// # Errors
    /// 503 if it is not loaded in time.
    pub async fn bring_model<'a>(
        self: &Arc<Self>,
        key_holder: &Tenant,
        named: impl FnOnce() -> Option<Cow<'a, str>>,
    ) -> Result<Presence, ApiError> {
        let Some(models) = self.models.on_demand.as_ref().filter(|_| !self.is_draining()) else {
            return Ok(Presence::default());
        };
        if let Some(presence) = models.enter() {
            return Ok(presence);
        }
        let place: Arc<dyn Serving> = self.clone();
        match named().filter(|name| key_holder.permits(name, &[])) {
            Some(name) => models.ready(&place, &name).await,
            None => Ok(Presence::default()),
        }
    }

    /// Name of the model that answers requests without a name, if it is not in memory: the only one that the
    /// key permits.
    pub fn only_absent_model(&self, key_holder: &Tenant) -> Option<String> {
        let models = self.models.absent_models()?;
        if !self.models.router.routes().is_empty() || !self.models.upstreams.now().is_empty() {
            return None;
        }
        let mut names = models.names().into_iter().filter(|name| key_holder.permits(name, &[]));
        names.next().filter(|_| names.next().is_none())
    }

    /// Refusal of a model that the key does not permit.
    pub fn not_permitted(&self, key_holder: &Tenant, name: &str) -> ApiError {
        ApiError::model_not_permitted(name).with_models(&self.usable_names(key_holder))
    }

    /// Names of all models that the key permits: of each model its id and the adapters, then the models of
    /// upstream engines, those that are loaded on demand, and the aliases.
    pub fn usable_names(&self, key_holder: &Tenant) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for route in self.models.router.routes().iter() {
            let of_model = route.model.served.names.iter();
            names.extend(of_model.filter(|name| route.is_permitted(key_holder, name)).take(1).cloned());
            let adapters = route.model.adapters.list();
            names.extend(
                adapters
                    .iter()
                    .map(|(name, _)| name.clone())
                    .filter(|name| route.is_permitted(key_holder, name)),
            );
        }
        for model in self.models.upstreams.now().iter() {
            let permitted = model.names.iter().find(|name| key_holder.permits(name, &model.names));
            names.extend(permitted.cloned());
        }
        let on_demand = self.models.on_demand.iter().flat_map(|models| models.names());
        let aliases = self.config.routing.aliases.iter().map(|alias| alias.name.clone());
        for name in on_demand.chain(aliases).filter(|name| key_holder.permits(name, &[])) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Refuses a request for a model that the key does not permit, before caches are read and copies are
    /// made. Of an alias, one of its models must be permitted, and all of them if the answer may be a
    /// `kept` one. Invalid bodies are refused later.
    ///
    /// # Errors
    /// 403 `permission_denied`.
    pub fn check_permission(
        &self,
        key_holder: &Tenant,
        name: Option<&str>,
        kept: bool,
    ) -> Result<(), ApiError> {
        let Some(name) = name.filter(|_| key_holder.is_restricted()) else { return Ok(()) };
        let is_permitted = match self.models.aliases.find(name) {
            Some(alias) => {
                let targets = alias.config.targets.iter().map(|target| &target.model);
                let mut models = targets.chain(&alias.config.fallback);
                let permits = |model: &String| self.permits_model(key_holder, model);
                key_holder.permits(name, &[]) || if kept { models.all(permits) } else { models.any(permits) }
            }
            None => self.permits_model(key_holder, name),
        };
        if is_permitted { Ok(()) } else { Err(self.not_permitted(key_holder, name)) }
    }

    fn permits_model(&self, key_holder: &Tenant, name: &str) -> bool {
        match (self.models.upstreams.find(name), self.models.router.get(name)) {
            (Some(model), _) => key_holder.permits(name, &model.names),
            (None, Some(route)) => route.is_permitted(key_holder, name),
            (None, None) => key_holder.permits(name, &[]),
        }
    }
}
