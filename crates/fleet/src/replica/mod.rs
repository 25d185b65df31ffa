//! The extension point `Replica`: what answers requests. Its requests, events, loads and errors are plain
//! data of its own, so that an engine in this process ([`LocalReplica`]) and one in another process look the
//! same. Does not know HTTP or text.

mod asking;
mod error;
mod local;
mod observed;
mod remote;
mod replicas;
mod request;
mod resumable;
mod wire_form;
mod wire_request;

use std::fmt::Debug;
use std::sync::Arc;

use futures_util::Stream;
use futures_util::future::BoxFuture;
pub use throng_core::fleet::replica::{
    Load, ResumedContinuation, Status, StepTokens, Timing, TokenReport, Totals,
};
use throng_core::scheduling::block_pool::{CacheCursor, CacheNews};
use throng_core::timeline::request_trace::RequestTrace;

use crate::dispatch::HealthReporter;

pub use asking::PlacementHints;
pub use error::{ReplicaError, ReplicaErrorKind};
pub use local::LocalReplica;
pub use observed::{FleetObserver, FleetRecording};
pub use remote::{Connection, ConnectionGuard, Endpoint, Identity, Link, Links, RemoteReplica};
pub use remote::{InvalidAddress, WorkerAddress};
pub use replicas::Replicas;
pub use request::{Continuations, ReplicaRequest, RequestedAdapter};
pub use resumable::Resumable;
pub use wire_form::{received_error, received_event, sent_error, sent_event, sent_status};
pub use wire_request::{received_constraint, received_request, sent_request};

/// An event of a request that a replica runs.
pub type ReplicaEvent = throng_core::fleet::replica::StreamEvent<ReplicaError>;

/// Answers requests.
pub trait Replica: Debug + Send + Sync {
    /// Takes a request in. Dropping the future or the generation aborts it.
    ///
    /// The future fails when the replica cannot or will not take the request in.
    fn generate(
        &self,
        request: ReplicaRequest,
    ) -> BoxFuture<'static, Result<Box<dyn Generation>, ReplicaError>>;

    /// Whether it would refuse any request now, however short, as far as is known without waiting.
    ///
    /// # Errors
    /// Errors of [`Self::generate`].
    fn check_room(&self) -> Result<(), ReplicaError>;

    /// Its load, as far as is known without waiting.
    fn load(&self) -> Load;

    /// Whether it answers, as far as is known without waiting.
    fn status(&self) -> Status;

    /// The name by which clients can ask for it; its number among the model's replicas without one.
    fn name(&self) -> Option<String> {
        None
    }

    /// Attaches it to a model's dispatcher. A replica that learns how it is reports it there.
    fn attach(&self, _reporter: HealthReporter) {}

    /// Changes of its prefix cache since this reader asked last; `None` from one that tells it to its
    /// reporter, or to nobody.
    fn cache_news(&self, _cursor: &mut CacheCursor) -> Option<CacheNews> {
        None
    }
}

/// The events of one request, in order. The stream ends after the last continuation's
/// [`ReplicaEvent::Finished`] or after [`ReplicaEvent::Failed`]. Dropping it aborts what has not ended,
/// within one step.
pub trait Generation: Stream<Item = ReplicaEvent> + Unpin + Debug + Send {
    /// Ends one continuation, which needs no more tokens. Its [`ReplicaEvent::Finished`] still comes, after
    /// tokens that were on their way.
    fn abort_continuation(&mut self, index: u32);

    /// Ends one continuation whose answer is whole although the replica would go on: a stop string was found.
    /// As aborting it, but for who shares the generation or keeps it.
    fn stop_continuation(&mut self, index: u32) {
        self.abort_continuation(index);
    }

    /// Source of the account of its time, if there is one.
    fn trace(&self) -> Option<Arc<dyn TraceSource>> {
        None
    }
}

/// Account of a generation's time, found once it has ended. It can be kept when the generation is gone.
pub trait TraceSource: Debug + Send + Sync {
    /// The account; `None` before the end.
    fn get(&self) -> Option<&RequestTrace>;
}
