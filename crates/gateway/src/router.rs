//! Which replicas serve a model, and which of them a request goes to. Does not know how replicas work.

use std::sync::Arc;

use crate::openai::ApiError;
use crate::replica::{Generation, Load, Replica, ReplicaError, ReplicaRequest, Resumable, Status, choose};
use crate::served_model::ModelEntry;

/// The models and their replicas.
#[derive(Debug)]
pub(crate) struct Router {
    routes: Vec<Route>,
}

/// A model and its replicas.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    /// The model.
    pub model: Arc<ModelEntry>,
    /// What answers its requests, at least one.
    replicas: Arc<[Arc<dyn Replica>]>,
}

impl Route {
    /// A model and what answers its requests.
    pub fn new(model: Arc<ModelEntry>, replicas: Vec<Arc<dyn Replica>>) -> Self {
        Self { model, replicas: replicas.into() }
    }

    /// Submits a request to the replica with the least load. With several replicas, another one goes on when that one
    /// refuses or fails; with one, its failure ends the request.
    ///
    /// # Errors
    /// When no replica takes the request in.
    pub async fn generate(&self, request: ReplicaRequest) -> Result<Box<dyn Generation>, ReplicaError> {
        match &*self.replicas {
            [only] => only.generate(request).await,
            _ => Resumable::start(self.replicas.clone(), request).await,
        }
    }

    /// Whether all replicas would refuse any request now.
    ///
    /// # Errors
    /// What the replica with the least load would say.
    pub fn check_room(&self) -> Result<(), ReplicaError> {
        if self.replicas.iter().any(|replica| replica.check_room().is_ok()) {
            return Ok(());
        }
        choose(&self.replicas, &[]).map_or(Ok(()), |idx| self.replicas[idx].check_room())
    }

    /// The load of each replica.
    pub fn loads(&self) -> impl Iterator<Item = Load> {
        self.replicas.iter().map(|replica| replica.load())
    }

    /// Whether the model can be used: the status of its best replica.
    pub fn status(&self) -> Status {
        self.replicas.iter().map(|replica| replica.status()).min().unwrap_or(Status::Lost)
    }
}

impl Router {
    /// A router over models with their replicas.
    pub fn new(routes: Vec<Route>) -> Self {
        Self { routes }
    }

    /// All models.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// The model that answers to `name`, or whose adapter does.
    ///
    /// # Errors
    /// 404 `model_not_found`.
    pub fn find(&self, name: &str) -> Result<&Route, ApiError> {
        let answers = |route: &&Route| route.model.answers_to(name);
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
