//! The extension point by which workers and upstream engines bring models to a gateway. Does not know how
//! models are served.

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use throng_wire::{ArtifactKind, Description};

use crate::replica::{Links, Replica, Replicas};
use crate::upstream::{Upstream, UpstreamModels};

/// The models of a fleet, as its gateway serves them.
pub trait FleetModels: Debug + Send + Sync {
    /// The connections to workers.
    fn workers(&self) -> &Arc<Links>;

    /// The models of upstream engines.
    fn upstreams(&self) -> &Arc<UpstreamModels>;

    /// Checks that a worker or an engine may be in this region.
    ///
    /// # Errors
    /// Why not.
    fn check_region(&self, region: &str) -> Result<(), String>;

    /// Serves a model that a worker describes and no other worker has, from its artifacts.
    ///
    /// The future fails when the model cannot be served; the text says why.
    fn add_remote(
        &self,
        description: Description,
        artifacts: Vec<(ArtifactKind, Bytes)>,
        first: Arc<dyn Replica>,
    ) -> BoxFuture<'_, Result<Box<dyn RemoteModel>, String>>;

    /// Lets an upstream engine serve a model, which other engines may serve too.
    ///
    /// # Errors
    /// Why not.
    fn add_upstream(
        &self,
        names: Vec<String>,
        upstream: Arc<Upstream>,
        model_there: String,
    ) -> Result<(), String>;

    /// Whether a first model is served, and all upstream engines have answered or failed.
    fn is_settled(&self) -> bool;
}

/// A model that workers compute, as its gateway serves it.
pub trait RemoteModel: Debug + Send + Sync {
    /// The workers that answer its requests.
    fn replicas(&self) -> &Replicas;

    /// Notes that a worker joins. Answers of workers with equal fingerprints are equal to the bit.
    fn worker_joined(&self, fingerprint: &str);
}
