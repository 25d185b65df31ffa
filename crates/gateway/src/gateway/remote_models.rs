//! Models of workers that come to a gateway. Does not know how workers are asked.

use std::sync::Arc;

use super::{GatewayError, Loading, check_names};
use crate::replica::Replica;
use crate::router::Route;
use crate::served_model::ServedModel;

impl Loading {
    /// Serves a model that a worker computes, beside those that are served already. The first one ends the loading.
    ///
    /// # Errors
    /// [`GatewayError::ModelName`].
    pub(crate) fn add_remote(
        &self,
        model: ServedModel,
        first: Arc<dyn Replica>,
    ) -> Result<Route, GatewayError> {
        let app = self.app();
        let routes = app.router.routes();
        let is_taken = |name: &&String| {
            routes.iter().any(|other| other.model.answers_to(name))
                || self.shared.foreign.find(name).is_some()
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
