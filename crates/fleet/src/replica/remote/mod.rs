//! A replica in another process: a worker with one model, over an HTTP/2 connection that another task
//! keeps. The loss of the connection fails all requests on it, so that other replicas continue them; later
//! data on it is ignored. Does not know routes.

mod address;
mod connection;
mod generation;
mod link;
mod links;
mod probe;
mod request_body;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_channel::mpsc;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use http::{Request, StatusCode};
use throng_core::fleet::routing::Role;
use throng_core::scheduling::admission::Refusal;
use throng_http::awake::within;
use throng_wire::{Event, GENERATE, NEWEST_VERSION, VERSION_HEADER};

use self::generation::RemoteGeneration;
use self::link::OwnSequences;
pub(crate) use self::request_body::RequestBody;
use super::{
    Generation, Load, Replica, ReplicaError, ReplicaErrorKind, ReplicaRequest, SplitCounts, Status,
    received_error, sent_request,
};
use crate::body_lines::BodyLines;
use crate::dispatch::HealthReporter;

pub use address::{InvalidAddress, WorkerAddress};
pub use connection::{Connection, ConnectionGuard, Endpoint};
pub use link::{Identity, Link};
pub use links::Links;

/// Timeout until a worker accepts a request: it may have to load an adapter.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(60);

/// A worker while it has one model.
#[derive(Debug)]
pub struct RemoteReplica {
    link: Arc<Link>,
    identity: Identity,
}

impl RemoteReplica {
    /// Creates the replica for the worker behind `link`, valid while it has the model of this identity.
    pub fn new(link: Arc<Link>, identity: Identity) -> Self {
        Self { link, identity }
    }
}

impl Replica for RemoteReplica {
    fn generate(
        &self,
        request: ReplicaRequest,
    ) -> BoxFuture<'static, Result<Box<dyn Generation>, ReplicaError>> {
        let Some(connection) = self.link.connection(&self.identity) else {
            return ready(Err(lost("the worker is not connected"))).boxed();
        };
        if request.media.is_some() && !self.link.takes_media() {
            let kind = ReplicaErrorKind::Refused(Refusal::UnreadableMedia);
            let message = "the worker reads text only".to_owned();
            return ready(Err(ReplicaError { kind, retryable: true, message })).boxed();
        }
        let counted = self.link.begin(request.n_continuations() as usize);
        async move {
            let accepted = within(ACCEPT_TIMEOUT, submit(connection, request, counted)).await;
            accepted.unwrap_or_else(|_| Err(lost("the worker did not take the request in")))
        }
        .boxed()
    }

    fn check_room(&self) -> Result<(), ReplicaError> {
        if self.link.connection(&self.identity).is_none() {
            return Err(lost("the worker is not connected"));
        }
        self.link.refusal().map_or(Ok(()), Err)
    }

    fn load(&self) -> Load {
        self.link.load()
    }

    fn status(&self) -> Status {
        let status = self.link.status(&self.identity);
        if status == Status::Ready && self.link.is_draining() { Status::Stalled } else { status }
    }

    fn lost_for(&self) -> Option<Duration> {
        self.link.lost_for(&self.identity)
    }

    fn name(&self) -> Option<String> {
        Some(self.link.endpoint.name())
    }

    fn block_address(&self) -> Option<(WorkerAddress, Option<String>)> {
        let endpoint = &self.link.endpoint;
        let connection = self.link.connection(&self.identity)?;
        (!connection.is_lost()).then(|| (endpoint.address.clone(), endpoint.server_name.clone()))
    }

    fn role(&self) -> Role {
        self.identity.role
    }

    fn splits(&self) -> Option<Arc<SplitCounts>> {
        Some(self.link.splits.clone())
    }

    fn attach(&self, reporter: HealthReporter) {
        self.link.attach(self.identity.clone(), reporter);
    }
}

/// Sends a request and waits until the worker accepts it.
async fn submit(
    connection: Connection,
    request: ReplicaRequest,
    counted: OwnSequences,
) -> Result<Box<dyn Generation>, ReplicaError> {
    let n = request.n_continuations();
    let sent = sent_request(&request);
    sent.n_content_bytes().map_err(|error| refused(&error.to_string(), false))?;
    let line = throng_wire::line(&sent).map_err(|error| refused(&error.to_string(), false))?;
    let holder = sent.holder.as_ref().map(|holder| holder.address.clone());
    let contents = request.media.as_ref().map(|media| media.contents.clone()).unwrap_or_default();
    drop((sent, request));
    let (commands, receiver) = mpsc::unbounded();
    let head = Request::post("/").header(VERSION_HEADER, NEWEST_VERSION);
    let body = RequestBody::new(Bytes::from(line), contents, receiver);
    let answer = connection.send(head, GENERATE, body).await.map_err(|error| lost(&error))?;
    let status = answer.status();
    if status != StatusCode::OK {
        let reason = format!("the worker answered with {status}");
        // A worker that is too busy to read the request, or fails, says nothing against the request.
        let is_final = status.is_client_error() && status != StatusCode::REQUEST_TIMEOUT;
        return Err(if is_final { refused(&reason, false) } else { lost(&reason) });
    }
    let mut lines = BodyLines::new(Some(answer.into_body()), None);
    let first = tokio::select! {
        biased;
        () = connection.lost() => return Err(lost("the connection was lost")),
        first = lines.next() => first,
    };
    let first = first.map_err(|error| lost(&error.to_string()))?;
    let first = first.ok_or_else(|| lost("the worker broke off"))?;
    match serde_json::from_slice(&first) {
        Ok(Event::Accepted) => {
            let lost = connection.lost();
            let generation = RemoteGeneration::new(lines, commands, lost, n, counted);
            Ok(Box::new(generation.with_holder(holder)))
        }
        Ok(Event::Failed { error }) => Err(received_error(error)),
        _ => Err(lost("the worker sent what is no event")),
    }
}

/// A retryable error: another worker may continue the lost request.
fn lost(reason: &str) -> ReplicaError {
    ReplicaError { kind: ReplicaErrorKind::Unhealthy, retryable: true, message: reason.to_owned() }
}

fn refused(reason: &str, retryable: bool) -> ReplicaError {
    ReplicaError { kind: ReplicaErrorKind::Failed, retryable, message: reason.to_owned() }
}
