//! The server: accepting, limits of connections, draining at shutdown. Does not know routes and models: it
//! turns requests into responses.

mod client_connection;
mod client_io;
mod h2_flood;
mod http1_chunks;
mod http1_gate;
mod http1_head;
mod limits;
mod listener;
mod outflow;
mod overflow;
mod response_body;
mod socket;
mod tls;

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use self::client_connection::serve_connection;
use self::overflow::Refuser;
use crate::connection::{InFlight, Socket};
use crate::memory::MemoryBudget;
use crate::phase::{Phase, Shutdown};

pub use self::http1_head::{
    MAX_HEADER_BYTES, MAX_HEADER_FIELD_BYTES, MAX_HEADER_FIELDS, MAX_URI_BYTES, check_http2_fields,
};
pub use self::limits::{RawResponses, ServerLimits, Timeouts};
pub use self::listener::Listener;
pub use self::outflow::HeldFrame;
pub use self::response_body::ResponseBody;
pub use self::tls::{ClientCertificates, Tls, TlsConfig, TlsError};

/// Time for sending the last events of streams after they have been cut.
const CUT_GRACE: Duration = Duration::from_secs(2);
/// Time for connections accepted during the drain to receive their responses.
const LATE_GRACE: Duration = Duration::from_millis(250);

/// An application behind the server, which answers its requests.
pub trait Respond: Send + Sync + 'static {
    /// Type of the response bodies.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static;
    /// Guard that is dropped when a response has been sent or abandoned.
    type Guard: Send + Unpin + 'static;

    /// Answers one request of a connection. The response holds `in_flight` until it has been sent.
    fn respond(
        &self,
        request: Request<Incoming>,
        in_flight: InFlight,
    ) -> impl Future<Output = Response<ResponseBody<Self::Body, Self::Guard>>> + Send;
}

/// A server without its listening socket.
#[derive(Debug)]
pub struct Server<R> {
    /// Application that answers all requests.
    pub responder: R,
    /// Limits of connections.
    pub limits: ServerLimits,
    /// Phase of the server.
    pub phase: watch::Sender<Phase>,
    /// Limit on the bytes held for all requests.
    pub memory: Arc<MemoryBudget>,
    /// TLS settings; `None` without encryption.
    pub tls: Option<Arc<Tls>>,
    /// Whether requests must have credentials.
    pub needs_credentials: bool,
    /// Raw responses for connections without a readable request.
    pub raw_responses: RawResponses,
}

impl<R: Respond> Server<R> {
    /// Serves until `shutdown` completes and the running requests have ended or been cut. Meanwhile new
    /// connections are accepted, so that health checks and new requests get an error with the reason,
    /// unless another process accepts them.
    ///
    /// # Errors
    /// When the socket cannot listen.
    pub async fn serve(
        self,
        listener: Listener,
        shutdown: impl Future<Output = impl Into<Shutdown>>,
    ) -> io::Result<()> {
        let (phase, limits, following) = (self.phase.clone(), self.limits, self.tls.clone());
        listener.lengthen_queue()?;
        let mut door = Door {
            listener,
            slots: Arc::new(Semaphore::new(limits.max_connections.clamp(1, Semaphore::MAX_PERMITS))),
            refuser: Refuser::new(self.raw_responses.too_many_connections),
            server: Arc::new(self),
        };
        let mut connections = JoinSet::new();
        let following = async {
            match following {
                Some(tls) => tls.follow_changes().await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(shutdown, following);
        let how = loop {
            tokio::select! {
                how = &mut shutdown => break how.into(),
                () = &mut following => {}
                Some(_) = connections.join_next() => {}
                accepted = door.accept() => door.spawn(accepted, false, &mut connections),
            }
        };
        match how {
            Shutdown::Drain => drain(Some(door), &phase, limits.shutdown_timeout, connections).await,
            Shutdown::HandOver => {
                drop(door);
                drain::<R>(None, &phase, limits.shutdown_timeout, connections).await;
            }
        }
        Ok(())
    }
}

/// Accepts connections.
#[derive(Debug)]
struct Door<R> {
    listener: Listener,
    slots: Arc<Semaphore>,
    refuser: Refuser,
    server: Arc<Server<R>>,
}

type Accepted = Option<(Socket, OwnedSemaphorePermit)>;

impl<R: Respond> Door<R> {
    async fn accept(&mut self) -> Accepted {
        let permit = self.slots.clone().acquire_owned().await.ok()?;
        match self.listener.accept().await {
            Ok(socket) => Some((socket, permit)),
            Err(error) => {
                self.refuser.refuse_one(&self.listener, &error).await;
                None
            }
        }
    }

    /// Serves a connection in a separate task. `is_late`: the server is draining.
    fn spawn(&self, accepted: Accepted, is_late: bool, connections: &mut JoinSet<()>) {
        let Some((socket, permit)) = accepted else { return };
        let phase = self.server.phase.subscribe();
        connections.spawn(serve_connection(self.server.clone(), socket, phase, is_late, permit));
    }
}

async fn drain<R: Respond>(
    mut door: Option<Door<R>>,
    phase: &watch::Sender<Phase>,
    timeout: Duration,
    mut connections: JoinSet<()>,
) {
    phase.send_replace(if door.is_some() { Phase::Draining } else { Phase::HandedOver });
    let mut late = JoinSet::new();
    let mut all_done = async |connections: &mut JoinSet<()>| loop {
        tokio::select! {
            ended = connections.join_next() => if ended.is_none() { return },
            Some(_) = late.join_next() => {}
            Some(accepted) = accept_late(&mut door) => {
                if let Some(door) = &door {
                    door.spawn(accepted, true, &mut late);
                }
            }
        }
    };
    if tokio::time::timeout(timeout, all_done(&mut connections)).await.is_err() {
        tracing::warn!(n_connections = connections.len(), "cutting what still runs");
        phase.send_replace(Phase::Cut);
        let _ = tokio::time::timeout(CUT_GRACE, all_done(&mut connections)).await;
        connections.shutdown().await;
    }
    drop(door);
    let rest = async { while late.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(LATE_GRACE, rest).await;
    late.shutdown().await;
}

async fn accept_late<R: Respond>(door: &mut Option<Door<R>>) -> Option<Accepted> {
    match door {
        Some(door) => Some(door.accept().await),
        None => std::future::pending().await,
    }
}
