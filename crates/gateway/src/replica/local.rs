//! A replica in this process: an engine handle. Refuses to know anything the engine does not say.

use std::task::{Context, Poll};

use throng_core::admission::Refusal;
use throng_core::request::Request;
use throng_engine::{EngineHandle, EngineStats, StreamEvent, SubmitError, TokenStream};

use super::{Generation, Replica, ReplicaError, ReplicaErrorKind};

/// An engine in this process.
#[derive(Debug, Clone)]
pub(crate) struct LocalReplica(pub EngineHandle);

impl Replica for LocalReplica {
    fn generate(&self, mut request: Request) -> Result<Box<dyn Generation>, ReplicaError> {
        request.id = self.0.next_request_id();
        let stream = self.0.submit(request)?;
        Ok(Box::new(stream))
    }

    fn check_room(&self) -> Result<(), ReplicaError> {
        Ok(self.0.check_room()?)
    }

    fn stats(&self) -> EngineStats {
        self.0.stats()
    }

    fn is_healthy(&self) -> bool {
        self.0.is_healthy()
    }

    fn is_lost(&self) -> bool {
        self.0.is_lost()
    }
}

impl Generation for TokenStream {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<StreamEvent>> {
        Self::poll_next(self, cx)
    }

    fn abort_sequence(&self, index: u32) {
        Self::abort_sequence(self, index);
    }
}

impl From<SubmitError> for ReplicaError {
    fn from(source: SubmitError) -> Self {
        let (kind, retryable) = match source {
            SubmitError::Refused(Refusal::QueueFull { .. }) => (ReplicaErrorKind::Overloaded, true),
            SubmitError::Refused(_) => (ReplicaErrorKind::Refused, false),
            SubmitError::Draining => (ReplicaErrorKind::Draining, true),
            SubmitError::Unhealthy => (ReplicaErrorKind::Unhealthy, true),
        };
        Self { kind, retryable, source }
    }
}
