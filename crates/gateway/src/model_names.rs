//! Names of the models that a key may use, for lists and for errors about unknown models. Does not know
//! HTTP.

use crate::app::App;
use crate::auth::Tenant;
use crate::router::Route;
use throng_api::ApiError;

impl App {
    /// The model named `name`, or the only one when no name is given.
    ///
    /// # Errors
    /// Errors of [`Tenant::find_or_only`] with the names of the models that the key may use.
    pub fn find_model(&self, key_holder: &Tenant, name: Option<&str>) -> Result<Route, ApiError> {
        key_holder.find_or_only(&self.models.router, name).map_err(|error| match (error.code(), name) {
            ("model_not_found", Some(_)) => error.with_models(&self.usable_names(key_holder)),
            ("permission_denied", Some(name)) => self.not_permitted(key_holder, name),
            _ => error,
        })
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
            names.extend(of_model.filter(|name| key_holder.permits(name, route)).take(1).cloned());
            let adapters = route.model.adapters.list();
            names.extend(
                adapters.iter().map(|(name, _)| name.clone()).filter(|name| key_holder.permits(name, route)),
            );
        }
        for model in self.models.upstreams.now().iter() {
            let permitted = model.names.iter().find(|name| key_holder.permits_name_of(name, &model.names));
            names.extend(permitted.cloned());
        }
        let on_demand = self.models.on_demand.iter().flat_map(|models| models.names());
        let aliases = self.config.routing.aliases.iter().map(|alias| alias.name.clone());
        for name in on_demand.chain(aliases).filter(|name| key_holder.permits_name_of(name, &[])) {
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
                key_holder.permits_name_of(name, &[])
                    || if kept { models.all(permits) } else { models.any(permits) }
            }
            None => self.permits_model(key_holder, name),
        };
        if is_permitted { Ok(()) } else { Err(self.not_permitted(key_holder, name)) }
    }

    fn permits_model(&self, key_holder: &Tenant, name: &str) -> bool {
        match (self.models.upstreams.find(name), self.models.router.get(name)) {
            (Some(model), _) => key_holder.permits_name_of(name, &model.names),
            (None, Some(route)) => key_holder.permits(name, &route),
            (None, None) => key_holder.permits_name_of(name, &[]),
        }
    }
}
