//! The listening socket: accepting, the limits of a connection, draining at shutdown. Does not know routes and
//! models: a request goes in, a response comes out.

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

use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use self::client_io::{ClientIo, IoTimeouts};
use self::guard::{Guard, cors, root_path};
use self::http1_gate::Http1Gate;
use self::outflow::StreamExecutor;
use self::overflow::Refuser;
use self::respond::Responder;
use self::socket::{ClientSocket, ClientStream};
use self::tls::TLS_BYTES;
use crate::config::GatewayConfig;
use crate::connection::{ConnectionState, InFlight, Socket, client_gone};
use crate::memory::{MemoryBudget, Part, Reservation};
use crate::metrics::HttpMetrics;
use crate::observation::Observation;
use crate::phase::{Phase, Shutdown};

pub use self::listener::Listener;
pub(crate) use self::tls::Tls;
pub use self::tls::TlsError;

/// hyper's buffers; must hold a request's head as large as [`guard`] still answers politely.
const CONNECTION_BUFFER_BYTES: usize = 128 << 10;
/// What a connection holds beside unwritten responses: hyper's first buffers, its task, the state beside it.
const CONNECTION_BYTES: usize = 16 << 10;
const MAX_PARSED_HEADER_FIELDS: usize = 256;
/// Streams of an HTTP/2 client at a time.
pub(crate) const MAX_CLIENT_STREAMS: u32 = 128;
const H2_WINDOW_BYTES: u32 = 64 << 10;
/// Of one stream, beside the frame that waits for the client's window.
const H2_SEND_BUFFER_BYTES: usize = 16 << 10;
const H2_PING_INTERVAL: Duration = Duration::from_secs(20);
/// After streams have been cut, their last words may take this long.
const CUT_GRACE: Duration = Duration::from_secs(2);
/// Connections that came while streams were finishing may take this long for what they are being sent.
const LATE_GRACE: Duration = Duration::from_millis(250);
/// An open connection may be without a request for so long after another process has begun to accept.
const HANDOVER_GRACE: Duration = Duration::from_secs(2);

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

/// Completes when a connection is to close after its answers. One that came shortly before another process began to accept has time to
/// send its request, since it cannot know.
async fn told_to_close(phase: &mut watch::Receiver<Phase>) {
    let handed_over = phase
        .wait_for(|phase| *phase >= Phase::HandedOver)
        .await
        .is_ok_and(|phase| *phase == Phase::HandedOver);
    if handed_over {
        let ending = phase.wait_for(|phase| *phase >= Phase::Draining);
        let _ = tokio::time::timeout(HANDOVER_GRACE, ending).await;
    }
}

/// Serves a connection until either side ends it. One that came before the server began to drain closes then, once its
/// request has been answered; a late one closes after its first answer. Its slot is free at its end.
async fn serve_connection(
    responder: Arc<Responder>,
    socket: Socket,
    mut phase: watch::Receiver<Phase>,
    is_late: bool,
    _slot: OwnedSemaphorePermit,
) {
    let config = &responder.service().config.server;
    if let Err(error) = socket::tune(&socket, config) {
        tracing::debug!(%error, "cannot set a socket option");
    }
    let mut memory = responder.service().memory.reservation(Part::Sockets);
    memory.add_always(CONNECTION_BYTES);
    let state = Arc::new(ConnectionState::new(socket.client()));
    let socket = Arc::new(socket);
    let timeouts = IoTimeouts {
        header: Duration::from_secs(config.header_timeout_s),
        idle: Duration::from_secs(config.idle_timeout_s),
        write: Duration::from_secs(config.slow_reader_timeout_s),
    };
    let stream = ClientSocket::new(socket.clone());
    let stream = tokio::select! {
        encrypted = encrypt(&responder, stream, timeouts.header, &mut memory) => encrypted,
        _ = phase.wait_for(|phase| *phase >= Phase::Draining), if !is_late => None,
    };
    let Some(stream) = stream else { return };
    let is_encrypted = stream.is_encrypted();
    let io = ClientIo::new(stream, state.clone(), timeouts);
    let needs_key = responder.service().config.access.needs_key();
    let io = TokioIo::new(Http1Gate::new(io, state.clone(), needs_key));
    let service = {
        let (responder, state) = (responder.clone(), state.clone());
        hyper::service::service_fn(move |request| {
            // From here on, not from when hyper first asks for the response: it looks for more input before that.
            let in_flight = InFlight::begin(&state, request.version());
            let responder = responder.clone();
            async move { Ok::<_, std::convert::Infallible>(responder.respond(request, in_flight).await) }
        })
    };
    let streams_memory = responder.service().memory.clone();
    let streams = StreamExecutor { state: state.clone(), memory: streams_memory, timeout: timeouts.write };
    let builder = protocols(streams, responder.service().max_streams);
    let connection = builder.serve_connection(io, service);
    let gone = client_gone(&socket, &state.presence, is_encrypted);
    tokio::pin!(connection, gone);
    let mut closing = false;
    loop {
        tokio::select! {
            result = &mut connection => {
                if let Err(error) = result {
                    tracing::debug!(%error, "connection ended");
                }
                return;
            }
            () = &mut gone => {
                tracing::debug!("the client has gone");
                return;
            }
            () = state.end_requested() => break,
            () = state.close_requested(), if !closing => {}
            () = told_to_close(&mut phase), if !closing && !is_late => {}
        }
        closing = true;
        connection.as_mut().graceful_shutdown();
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(CUT_GRACE, connection).await;
}

/// Shakes hands where the server has a certificate; `None` where the client does not do so within `timeout`.
async fn encrypt(
    responder: &Responder,
    stream: ClientSocket,
    timeout: Duration,
    memory: &mut Reservation,
) -> Option<ClientStream> {
    let Some(tls) = &responder.service().tls else { return Some(ClientStream::Plain(stream)) };
    memory.add_always(TLS_BYTES);
    // On the heap, since a handshake's state is larger than all that a connection holds later.
    let stream = Box::pin(tokio::time::timeout(timeout, tls.accept(stream))).await.ok()??;
    Some(ClientStream::Tls(Box::new(stream)))
}

fn protocols(streams: StreamExecutor, max_streams: u32) -> auto::Builder<StreamExecutor> {
    let mut builder = auto::Builder::new(streams);
    builder
        .http1()
        .header_read_timeout(None)
        .max_headers(MAX_PARSED_HEADER_FIELDS)
        .max_buf_size(CONNECTION_BUFFER_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(max_streams)
        .max_header_list_size(CONNECTION_BUFFER_BYTES as u32)
        .initial_stream_window_size(H2_WINDOW_BYTES)
        .max_send_buf_size(H2_SEND_BUFFER_BYTES)
        .keep_alive_interval(H2_PING_INTERVAL);
    builder
}
