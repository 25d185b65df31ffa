//! The listening socket: accepting, the limits of a connection, draining at shutdown. Does not know routes and
//! models: a request goes in, a response comes out.

mod client_connection;
mod client_io;
mod guard;
mod h2_flood;
mod http1_chunks;
mod http1_gate;
mod http1_head;
mod listener;
mod outflow;
mod overflow;
mod refusals;
mod respond;
mod socket;
mod tls;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use throng_http::memory::MemoryBudget;
use throng_http::{Phase, Shutdown};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use self::client_connection::serve_connection;
use self::guard::{Guard, cors, root_path};
use self::overflow::Refuser;
use self::respond::Responder;
use crate::config::GatewayConfig;
use crate::connection::Socket;
use crate::metrics::HttpMetrics;
use crate::observation::Observation;

pub use self::listener::Listener;
pub(crate) use self::tls::Tls;
pub use self::tls::TlsError;

/// Streams of an HTTP/2 client at a time.
pub(crate) const MAX_CLIENT_STREAMS: u32 = 128;
/// After streams have been cut, their last words may take this long.
const CUT_GRACE: Duration = Duration::from_secs(2);
/// Connections that came while streams were finishing may take this long for what they are being sent.
const LATE_GRACE: Duration = Duration::from_millis(250);

/// What a server serves, and what it shares with that.
#[derive(Debug)]
pub(crate) struct Service {
    /// What answers requests at present.
    pub served: watch::Receiver<Served>,
    /// As the operator set it.
    pub config: GatewayConfig,
    /// How far the server is on its way to its end.
    pub phase: watch::Sender<Phase>,
    /// Bounds what all requests hold.
    pub memory: Arc<MemoryBudget>,
    /// Encrypts the connections.
    pub tls: Option<Arc<Tls>>,
    /// Streams of an HTTP/2 connection at a time.
    pub max_streams: u32,
    /// Who is told of finished requests.
    pub observation: Arc<Observation>,
}

/// What answers requests.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    /// Takes a request, which brings its [`RequestContext`] as an extension; its response brings the
    /// [`axum::extract::MatchedPath`] of its route.
    ///
    /// [`RequestContext`]: crate::connection::RequestContext
    pub router: axum::Router,
    /// Gives a request for a route that is written in another way the path that the route has.
    pub tidy: fn(http::Uri) -> http::Uri,
    /// Counts HTTP exchanges.
    pub metrics: HttpMetrics,
}

/// Checks the settings for proxies and web pages.
///
/// # Errors
/// The setting, its value, and what it must be.
pub(crate) fn check(config: &GatewayConfig) -> Result<(), cors::Fault> {
    root_path::check(&config.server.root_path)?;
    cors::check_origins(&config.access.allowed_origins)?;
    cors::layer(&config.access).map(drop)
}

/// Serves until `shutdown` completes and the running requests have ended or been cut. While they run, new connections
/// are accepted, so that health checks and new requests are told why they are refused, unless another process accepts them.
pub(crate) async fn serve(
    service: Service,
    listener: Listener,
    shutdown: impl Future<Output = impl Into<Shutdown>>,
) -> io::Result<()> {
    let config = &service.config.server;
    let (phase, max_connections) = (service.phase.clone(), config.max_connections);
    let shutdown_timeout = Duration::from_secs(config.shutdown_timeout_s);
    listener.lengthen_queue()?;
    let guard = Guard::new(&service.config, &listener);
    let cors = cors::layer(&service.config.access).unwrap_or_default();
    let mut door = Door {
        listener,
        slots: Arc::new(Semaphore::new(max_connections.clamp(1, Semaphore::MAX_PERMITS))),
        refuser: Refuser::new(),
        responder: Arc::new(Responder::new(service, guard, cors)),
    };
    let mut connections = JoinSet::new();
    let following = door.responder.service().tls.clone();
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
        Shutdown::Drain => drain(Some(door), &phase, shutdown_timeout, connections).await,
        Shutdown::HandOver => {
            drop(door);
            drain(None, &phase, shutdown_timeout, connections).await;
        }
    }
    Ok(())
}

/// Where connections come in.
#[derive(Debug)]
struct Door {
    listener: Listener,
    slots: Arc<Semaphore>,
    refuser: Refuser,
    responder: Arc<Responder>,
}

type Accepted = Option<(Socket, OwnedSemaphorePermit)>;

impl Door {
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

    /// Serves a connection among others; `is_late` when the server is draining.
    fn spawn(&self, accepted: Accepted, is_late: bool, connections: &mut JoinSet<()>) {
        let Some((socket, permit)) = accepted else { return };
        let phase = self.responder.service().phase.subscribe();
        connections.spawn(serve_connection(self.responder.clone(), socket, phase, is_late, permit));
    }
}

async fn drain(
    mut door: Option<Door>,
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

async fn accept_late(door: &mut Option<Door>) -> Option<Accepted> {
    match door {
        Some(door) => Some(door.accept().await),
        None => std::future::pending().await,
    }
}
