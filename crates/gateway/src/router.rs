//! The served models with their replicas. Does not know how replicas work.

use std::sync::{Arc, PoisonError, RwLock};
use throng_fleet::dispatch::RegionBound;

use throng_fleet::replica::{
    Generation, Load, PlacementHints, Replica, ReplicaError, ReplicaRequest, Replicas, Resumable, Status,
};

use crate::awaited::FleetMembers;
use crate::served_model::ModelEntry;
use throng_api::ApiError;
use throng_auth::Tenant;
use throng_metering::metrics::ModelLabels;

/// The models and their replicas.
#[derive(Debug, Default)]
pub(crate) struct Router {
    routes: RwLock<Arc<[Route]>>,
    /// Workers and engines that may bring further models.
    members: FleetMembers,
}

/// A model and its replicas.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    /// The model that the route leads to.
    pub model: Arc<ModelEntry>,
    replicas: Replicas,
}

impl Route {
    /// Creates the route of a model to its replicas.
    pub fn new(model: Arc<ModelEntry>, replicas: Replicas) -> Self {
        Self { model, replicas }
    }

    /// Whether the tenant's key permits this model under `name`.
    pub fn is_permitted(&self, tenant: &Tenant, name: &str) -> bool {
        tenant.permits(name, &self.model.served.names)
    }

    /// Replicas of the model.
    pub fn replicas(&self) -> &Replicas {
        &self.replicas
    }

    /// Submits a request to one of the replicas, to the one that it is pinned to, and only in permitted
    /// regions. With several replicas, another one continues when that one refuses or fails. A request that
    /// has begun waits for a worker to come back when none is left; if it `is_last_resort`, without another
    /// model to fall back to, it waits before its first token too.
    ///
    /// # Errors
    /// When no replica admits the request.
    pub async fn generate(
        &self,
        request: ReplicaRequest,
        pinned: Option<&str>,
        bound: Option<Arc<dyn RegionBound>>,
        is_last_resort: bool,
    ) -> Result<Box<dyn Generation>, ReplicaError> {
        match &*self.replicas.now() {
            [only] if !self.model.is_remote() && bound.is_none() => only.generate(request).await,
            _ => {
                let hints = PlacementHints::of(&request, &self.replicas, pinned, bound, is_last_resort);
                let started = Resumable::start(self.replicas.clone(), request, hints).await;
                started.inspect_err(|_| self.note_unserved())
            }
        }
    }

    /// Checks whether all replicas would refuse any request now. One that `may_wait` for a lost replica is
    /// not refused while it would.
    ///
    /// # Errors
    /// The refusal of the replica with the least load.
    pub fn check_room(&self, may_wait: bool) -> Result<(), ReplicaError> {
        let replicas = self.replicas.now();
        let has_room = replicas.iter().any(|replica| replica.check_room().is_ok());
        if has_room || may_wait && self.replicas.may_be_back() {
            return Ok(());
        }
        self.note_unserved();
        self.replicas.any().map_or(Ok(()), |replica| replica.check_room())
    }

    /// Counts a request without a replica, which raises the desired number by one.
    fn note_unserved(&self) {
        if self.status() != Status::Ready {
            self.model.scale.note_unserved();
        }
    }

    /// Whether all its workers are away, so that running requests wait for one.
    pub fn is_away(&self) -> bool {
        self.model.is_remote() && self.replicas.are_away()
    }

    /// Load of each replica.
    pub fn loads(&self) -> Vec<Load> {
        self.replicas.now().iter().map(|replica| replica.load()).collect()
    }

    /// Status of the best replica.
    pub fn status(&self) -> Status {
        self.replicas.now().iter().map(|replica| replica.status()).min().unwrap_or(Status::Lost)
    }
}

impl Router {
    /// Creates a router without models, for the members that may add some.
    pub fn of_fleet(members: FleetMembers) -> Self {
        Self { members, ..Self::default() }
    }

    /// Present models.
    pub fn routes(&self) -> Arc<[Route]> {
        self.routes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds a model.
    pub fn add(&self, route: Route) {
        let mut routes = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        *routes = routes.iter().cloned().chain([route]).collect();
    }

    /// Removes the model with this name; its running requests continue.
    pub fn remove(&self, name: &str) -> Option<Route> {
        let mut routes = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        let removed = routes.iter().find(|route| route.model.served.id() == name).cloned();
        *routes = routes.iter().filter(|route| route.model.served.id() != name).cloned().collect();
        removed
    }

    /// Present replicas with their labels.
    pub fn labelled_replicas(&self) -> Vec<(ModelLabels, Arc<dyn Replica>)> {
        let routes = self.routes();
        let of_route = |route: &Route| {
            let labels = |number| ModelLabels::of_engine(route.model.served.id(), number);
            (0..).map(labels).zip(route.replicas.now()).collect::<Vec<_>>()
        };
        routes.iter().flat_map(of_route).collect()
    }

    /// The model with this name, or with an adapter of this name.
    pub fn get(&self, name: &str) -> Option<Route> {
        self.routes().iter().find(|route| route.model.answers_to(name)).cloned()
    }

    /// The model with this name, for a request.
    ///
    /// # Errors
    /// 404 `model_not_found`; 503 while a worker or an engine has not reported its models.
    pub fn find(&self, name: &str) -> Result<Route, ApiError> {
        self.get(name).ok_or_else(|| match self.members.awaited() {
            Some(awaited) => awaited.refusal(Some(name)),
            None => ApiError::model_not_found(name),
        })
    }

    /// The named model, or the only one when no name is given.
    ///
    /// # Errors
    /// Errors of [`Self::find`]; 400 when the name is missing and there are several.
    pub fn find_or_only(&self, name: Option<&str>) -> Result<Route, ApiError> {
        match (name, &*self.routes()) {
            (Some(name), _) => self.find(name),
            (None, [only]) => Ok(only.clone()),
            (None, _) => Err(ApiError::missing_required_parameter("model")),
        }
    }

    /// The model named `name`, or the only one when no name is given, if the tenant's key permits it.
    ///
    /// # Errors
    /// Errors of [`Self::find_or_only`]; 403 `permission_denied` when the key does not permit the model. A
    /// key that is restricted to models does not learn which others exist.
    pub fn find_permitted(&self, tenant: &Tenant, name: Option<&str>) -> Result<Route, ApiError> {
        let found = self.find_or_only(name);
        match (&found, name) {
            (Ok(route), _) if !route.is_permitted(tenant, name.unwrap_or(route.model.served.id())) => {
                Err(ApiError::permission_denied())
            }
            (Err(_), Some(name)) if !tenant.names(name) => Err(ApiError::permission_denied()),
            _ => found,
        }
    }
}
