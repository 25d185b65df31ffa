//! The extension point through which workers and upstream engines add models to a gateway. Does not know
//! how models are served.

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use throng_wire::{ArtifactKind, Description};

use crate::replica::{Links, Replica, Replicas};
use crate::upstream::{Upstream, UpstreamModels};

/// The models of a fleet, served by its gateway.
pub trait FleetModels: Debug + Send + Sync {
    /// Connections to workers.
    fn workers(&self) -> &Arc<Links>;

    /// Models of upstream engines.
    fn upstreams(&self) -> &Arc<UpstreamModels>;

    /// Checks that a worker or an engine may be in this region.
    ///
    /// # Errors
    /// The reason why it may not.
    fn check_region(&self, region: &str) -> Result<(), String>;

    /// Starts serving a model with the description and the artifacts of its first worker.
    ///
    /// The future fails with the reason when the model cannot be served.
    fn add_remote(
        &self,
        description: Description,
        artifacts: Vec<(ArtifactKind, Bytes)>,
        first: Arc<dyn Replica>,
    ) -> BoxFuture<'_, Result<Box<dyn RemoteModel>, String>>;

    /// Adds an upstream engine to a model, which other engines may serve too.
    ///
    /// # Errors
    /// The reason why the engine cannot serve it.
    fn add_upstream(
        &self,
        names: Vec<String>,
        upstream: Arc<Upstream>,
        model_there: String,
    ) -> Result<(), String>;

    /// Whether a first model is served, and each upstream engine has answered or failed.
    fn is_settled(&self) -> bool;
}

/// A model that workers compute, served by its gateway.
pub trait RemoteModel: Debug + Send + Sync {
    /// Workers that answer the model's requests.
    fn replicas(&self) -> &Replicas;

    /// Records that a worker has joined. Workers with equal fingerprints give bit-identical outputs.
    fn worker_joined(&self, fingerprint: &str);
}
