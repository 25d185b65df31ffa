//! The names of models that a key may use, for lists and for what a client is told that asks for another one.
//! Does not know HTTP.

use crate::app::App;
use crate::auth::Tenant;
use crate::router::Route;
use throng_api::ApiError;

impl App {
    /// The model named `name`, or the only one when no name is given.
    ///
    /// # Errors
    /// The errors of [`Tenant::find_or_only`], which then name the models that the key may use.
    pub fn find_model(&self, caller: &Tenant, name: Option<&str>) -> Result<Route, ApiError> {
        caller.find_or_only(&self.router, name).map_err(|error| match (error.code(), name) {
            ("model_not_found", Some(_)) => error.with_models(&self.usable_names(caller)),
            ("permission_denied", Some(name)) => self.not_permitted(caller, name),
            _ => error,
        })
    }

    /// The refusal of a model that the key does not permit.
    pub fn not_permitted(&self, caller: &Tenant, name: &str) -> ApiError {
        ApiError::model_not_permitted(name).with_models(&self.usable_names(caller))
    }

    /// The names of all models that there are and that the key permits: of each model its id, then the
    /// adapters, the models of upstreams, those that are loaded on demand, and the aliases.
    pub fn usable_names(&self, caller: &Tenant) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for route in self.router.routes().iter() {
            let of_model = route.model.served.names.iter();
            names.extend(of_model.filter(|name| caller.permits(name, route)).take(1).cloned());
            let adapters = route.model.adapters.list();
            names.extend(
                adapters.iter().map(|(name, _)| name.clone()).filter(|name| caller.permits(name, route)),
            );
        }
        for model in self.foreign.now().iter() {
            let permitted = model.names.iter().find(|name| caller.permits_name_of(name, &model.names));
            names.extend(permitted.cloned());
        }
        let on_demand = self.on_demand.iter().flat_map(|models| models.names());
        let aliases = self.config.routing.aliases.iter().map(|alias| &alias.name);
        for name in on_demand.chain(aliases).filter(|name| caller.permits_name_of(name, &[])) {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }

    /// Refuses a request for a model that the key does not permit, before anything is looked up, copied or
    /// kept for it. Of an alias, one of its models must be permitted, and all of them where the answer may be
    /// one that was `kept`. Bodies that cannot be read are refused later.
    ///
    /// # Errors
    /// 403 `permission_denied`.
    pub fn check_permission(&self, caller: &Tenant, name: Option<&str>, kept: bool) -> Result<(), ApiError> {
        let Some(name) = name.filter(|_| caller.is_restricted()) else { return Ok(()) };
        let is_permitted = match self.aliases.find(name) {
            Some(alias) => {
                let targets = alias.config.targets.iter().map(|target| &target.model);
                let mut models = targets.chain(&alias.config.fallback);
                let permits = |model: &String| self.permits_model(caller, model);
                caller.permits_name_of(name, &[])
                    || if kept { models.all(permits) } else { models.any(permits) }
            }
            None => self.permits_model(caller, name),
        };
        if is_permitted { Ok(()) } else { Err(self.not_permitted(caller, name)) }
    }

    fn permits_model(&self, caller: &Tenant, name: &str) -> bool {
        match (self.foreign.find(name), self.router.get(name)) {
            (Some(model), _) => caller.permits_name_of(name, &model.names),
            (None, Some(route)) => caller.permits(name, &route),
            (None, None) => caller.permits_name_of(name, &[]),
        }
    }
}
