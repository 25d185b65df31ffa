//! The extension point `Replica`: answers requests. Its requests, events, loads and errors are plain data
//! of its own, so that an engine in this process ([`LocalReplica`]) and one in another process have the
//! same interface. Does not know HTTP or text.

mod asking;
mod early_blocks;
mod error;
mod hints;
mod local;
mod observed;
mod remote;
mod replicas;
mod request;
mod resumable;
mod split;
mod timed;
mod wire_form;
mod wire_request;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::future::BoxFuture;
pub use throng_core::fleet::replica::{
    Evictions, Load, ResumedContinuation, Status, StepTokens, Timing, TokenReport, Totals,
};
use throng_core::fleet::routing::Role;
use throng_core::scheduling::block_pool::{CacheCursor, CacheNews};
use throng_core::timeline::request_trace::RequestTrace;

use crate::dispatch::HealthReporter;

pub use error::{ReplicaError, ReplicaErrorKind};
pub use hints::PlacementHints;
pub use local::LocalReplica;
pub use observed::FleetRecording;
pub(crate) use remote::RequestBody;
pub use remote::{Connection, ConnectionGuard, Endpoint, Identity, Link, Links, RemoteReplica};
pub use remote::{InvalidAddress, WorkerAddress};
pub use replicas::Replicas;
pub use request::{Continuations, PrefixHolder, ReplicaRequest, RequestedAdapter};
pub use resumable::Resumable;
pub use split::{SplitCounts, SplitFallback, SplitReport};
pub use timed::TimeLimits;
pub use wire_form::{received_error, received_event, sent_error, sent_event, sent_status};
pub use wire_request::{received_constraint, received_request, sent_request};

/// An event of a request that a replica runs.
pub type ReplicaEvent = throng_core::fleet::replica::StreamEvent<ReplicaError>;

/// A replica: answers requests for tokens.
pub trait Replica: Debug + Send + Sync {
    /// Submits a request. Dropping the future or the generation aborts it.
    ///
    /// The future fails when the replica cannot or will not accept the request.
    fn generate(
        &self,
        request: ReplicaRequest,
    ) -> BoxFuture<'static, Result<Box<dyn Generation>, ReplicaError>>;

    /// Checks without waiting whether the replica would now refuse any request, however short.
    ///
    /// # Errors
    /// Errors of [`Self::generate`].
    fn check_room(&self) -> Result<(), ReplicaError>;

    /// Present load of the replica, without waiting.
    fn load(&self) -> Load;

    /// Present status of the replica, without waiting.
    fn status(&self) -> Status;

    /// Time since the replica was lost: its connection broke or it began to end. `None` while it is there,
    /// and if it never was.
    fn lost_for(&self) -> Option<Duration> {
        None
    }

    /// Name by which clients can select the replica; `None`: its index among the model's replicas.
    fn name(&self) -> Option<String> {
        None
    }

    /// The address at which other replicas can ask for its blocks, with the name that its certificate must
    /// have if that is not the host's; `None` if they cannot.
    fn block_address(&self) -> Option<(WorkerAddress, Option<String>)> {
        None
    }

    /// Part of requests that the replica is meant for.
    fn role(&self) -> Role {
        Role::Both
    }

    /// Counts of its requests whose prompts other replicas computed first; `None` if it takes no blocks over.
    fn splits(&self) -> Option<Arc<SplitCounts>> {
        None
    }

    /// Attaches the replica to a model's dispatcher. A replica that monitors its health reports it there.
    fn attach(&self, _reporter: HealthReporter) {}

    /// Changes of the prefix cache since the last call with this cursor; `None` if the replica sends them
    /// to its reporter, or has none.
    fn cache_news(&self, _cursor: &mut CacheCursor) -> Option<CacheNews> {
        None
    }
}

/// The events of one request, in order. The stream ends after the last continuation's
/// [`ReplicaEvent::Finished`] or after [`ReplicaEvent::Failed`]. Dropping it aborts all running
/// continuations within one step.
pub trait Generation: Stream<Item = ReplicaEvent> + Unpin + Debug + Send {
    /// Ends a continuation that needs no more tokens. Its [`ReplicaEvent::Finished`] still follows, after
    /// tokens that are already on their way.
    fn abort_continuation(&mut self, index: u32);

    /// Ends a continuation whose answer is complete because a stop string was found. Differs from aborting
    /// only if the generation is shared or cached.
    fn stop_continuation(&mut self, index: u32) {
        self.abort_continuation(index);
    }

    /// Source of the request's timeline, if there is one.
    fn trace(&self) -> Option<Arc<dyn TraceSource>> {
        None
    }
}

/// Timeline of a generation, available once it has ended. Outlives the generation.
pub trait TraceSource: Debug + Send + Sync {
    /// The timeline; `None` before the end, and of a replica in another process.
    fn get(&self) -> Option<&RequestTrace>;

    /// The part of the prompt that came from another replica; `None` before the end.
    fn pulled(&self) -> Option<&PulledPrefix> {
        None
    }

    /// Whether another replica has computed the prompt, and why; `None` where replicas have no roles.
    fn split(&self) -> Option<&SplitReport> {
        None
    }
}

/// Beginning of a prompt whose keys and values a replica took over from another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PulledPrefix {
    /// Number of tokens.
    pub n_tokens: u32,
    /// Address of the replica that had it.
    pub from: String,
}
