//! Door 3: what answers requests. Today an engine in this process; an engine in another process or another server
//! would stand here too. Refuses to know HTTP and text.

mod local;

use std::fmt::Debug;
use std::task::{Context, Poll};

use throng_core::request::Request;
use throng_engine::{EngineStats, StreamEvent, SubmitError};

pub(crate) use local::LocalReplica;

/// Something that answers requests.
pub(crate) trait Replica: Debug + Send + Sync {
    /// Takes a request in. Its `id` is given by the replica.
    ///
    /// # Errors
    /// At once, when the replica cannot or will not.
    fn generate(&self, request: Request) -> Result<Box<dyn Generation>, ReplicaError>;

    /// Whether it would refuse any request now, however short.
    ///
    /// # Errors
    /// As [`Self::generate`].
    fn check_room(&self) -> Result<(), ReplicaError>;

    /// What it is doing.
    fn stats(&self) -> EngineStats;

    /// Whether it can answer.
    fn is_healthy(&self) -> bool;

    /// Whether it will not answer again.
    fn is_lost(&self) -> bool;
}

/// The events of one request. Dropping it ends the request within one step.
pub(crate) trait Generation: Debug + Send {
    /// The next event; `None` after the last.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<StreamEvent>>;

    /// Ends one continuation; its last event still comes.
    fn abort_sequence(&self, index: u32);
}

/// Why a replica did not take a request in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{source}")]
pub(crate) struct ReplicaError {
    /// Whose fault it is, and what to do.
    pub kind: ReplicaErrorKind,
    /// Whether another replica, or this one later, may take the same request.
    pub retryable: bool,
    /// What the replica said.
    pub source: SubmitError,
}

/// Whose fault it is, and what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplicaErrorKind {
    /// The request can never run here.
    Refused,
    /// There is too much to do at present.
    Overloaded,
    /// The replica is ending.
    Draining,
    /// The replica is out of order.
    Unhealthy,
}
