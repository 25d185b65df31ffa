//! Which replica serves a model: there is one each. Refuses to know how replicas work.

use std::sync::Arc;

use crate::openai::ApiError;
use crate::replica::Replica;
use crate::served_model::ModelEntry;

/// The models and their replicas.
#[derive(Debug)]
pub(crate) struct Router {
    routes: Vec<Route>,
}

/// A model and its replica.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    /// The model.
    pub model: Arc<ModelEntry>,
    /// What answers its requests.
    pub replica: Arc<dyn Replica>,
}

impl Router {
    /// A router over models with one replica each.
    pub fn new(routes: Vec<Route>) -> Self {
        Self { routes }
    }

    /// All models.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// The model that answers to `name`.
    ///
    /// # Errors
    /// 404 `model_not_found`.
    pub fn find(&self, name: &str) -> Result<&Route, ApiError> {
        let answers = |route: &&Route| route.model.served.names.iter().any(|known| known == name);
        self.routes.iter().find(answers).ok_or_else(|| ApiError::model_not_found(name))
    }

    /// The named model, or the only one when no name is given.
    ///
    /// # Errors
    /// As [`Self::find`]; 400 when the name is missing and there are several.
    pub fn find_or_only(&self, name: Option<&str>) -> Result<&Route, ApiError> {
        match (name, self.routes.as_slice()) {
            (Some(name), _) => self.find(name),
            (None, [only]) => Ok(only),
            (None, _) => Err(ApiError::missing_required_parameter("model")),
        }
    }
}
