//! One client's connection from its acceptance to its end: encryption, HTTP version, closing. Does not know
//! the requests.

use std::convert::Infallible;
use std::error::Error;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use http_body::Body;
use hyper::body::Incoming;
use hyper::rt::bounds::Http2ServerConnExec;
use hyper::server::conn::{http1, http2};
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::TokioIo;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::client_io::ClientIo;
use super::http1_gate::{Http1Gate, HttpVersion};
use super::outflow::StreamExecutor;
use super::socket::{self, ClientSocket, ClientStream};
use super::tls::TLS_BYTES;
use super::{CUT_GRACE, Respond, Server};
use crate::awake::AwakeTimer;
use crate::connection::{ConnectionState, InFlight, Socket, client_gone};
use crate::memory::{Part, Reservation};
use crate::phase::Phase;

/// Bytes of hyper's buffers; at least as large as the largest head that the gate still answers with an
/// error.
const CONNECTION_BUFFER_BYTES: usize = 128 << 10;
/// Bytes of a connection without unwritten responses: hyper's initial buffers, its task and its state.
const CONNECTION_BYTES: usize = 16 << 10;
const MAX_PARSED_HEADER_FIELDS: usize = 256;
const H2_WINDOW_BYTES: u32 = 64 << 10;
/// Bytes of a stream's buffer, in addition to the frame that waits for the client's window.
const H2_SEND_BUFFER_BYTES: usize = 16 << 10;
const H2_PING_INTERVAL: Duration = Duration::from_secs(20);
/// Time that an open connection may stay without a request after another process has started to accept.
const HANDOVER_GRACE: Duration = Duration::from_secs(2);

/// A client's socket in the form that hyper takes.
type Io = TokioIo<Http1Gate<ClientIo>>;

/// Server events that end a connection.
struct Ending {
    phase: watch::Receiver<Phase>,
    /// Whether the connection was accepted while the server was draining.
    is_late: bool,
}

/// Serves a connection until either side ends it. When the server starts to drain, the connection closes
/// after its current response; one that was accepted later closes after its first response. Its slot is
/// released at the end.
pub(super) async fn serve_connection<R: Respond>(
    server: Arc<Server<R>>,
    socket: Socket,
    phase: watch::Receiver<Phase>,
    is_late: bool,
    _slot: OwnedSemaphorePermit,
) {
    let timeouts = server.limits.timeouts;
    if let Err(error) = socket::tune(&socket, &timeouts) {
        tracing::debug!(%error, "cannot set a socket option");
    }
    let mut ending = Ending { phase, is_late };
    let mut memory = server.memory.reservation(Part::Sockets);
    memory.add_always(CONNECTION_BYTES);
    let state = Arc::new(ConnectionState::new(socket.client()));
    let socket = Arc::new(socket);
    let stream = ClientSocket::new(socket.clone());
    let stream = tokio::select! {
        encrypted = encrypt(&server, stream, timeouts.header, &mut memory) => encrypted,
        () = ending.begun() => None,
    };
    let Some(stream) = stream else { return };
    let mut gone = pin!(client_gone(&socket, &state.presence, stream.is_encrypted()));
    let io = ClientIo::new(stream, state.clone(), timeouts);
    let mut io = Http1Gate::new(io, state.clone(), server.needs_credentials);
    let version = tokio::select! {
        version = io.version() => version,
        () = gone.as_mut() => return,
        () = ending.begun() => return,
    };
    let io = TokioIo::new(io);
    let service = {
        let (server, state) = (server.clone(), state.clone());
        service_fn(move |request| {
            // The count starts here, not when hyper first polls for the response: hyper looks for more
            // input before that.
            let in_flight = InFlight::begin(&state, request.version());
            let server = server.clone();
            // Boxed, because hyper keeps the memory of a response's future as long as the connection, long
            // after a stream's head was sent.
            async move { Ok::<_, Infallible>(server.responder.respond(request, in_flight).await) }.boxed()
        })
    };
    match version {
        Ok(HttpVersion::Http1) => {
            let connection = pin!(http1_settings().serve_connection(io, service).with_upgrades());
            let is_gone = drive(connection, gone.as_mut(), &state, ending).await;
            if let Some(continuation) = state.take_continuation().filter(|_| !is_gone) {
                tokio::select! {
                    () = continuation => {}
                    () = gone => tracing::debug!("the client has gone"),
                }
            }
        }
        Ok(HttpVersion::Http2) => {
            let memory = server.memory.clone();
            let streams = StreamExecutor { state: state.clone(), memory, timeout: timeouts.write };
            let settings = http2_settings(streams, server.limits.max_streams);
            // Boxed, because it is larger than the HTTP/1 state, and HTTP/1 connections are more common.
            let mut connection = Box::pin(settings.serve_connection(io, service));
            drive(connection.as_mut(), gone, &state, ending).await;
        }
        Err(error) => tracing::debug!(%error, "connection ended"),
    }
}

fn http1_settings() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .header_read_timeout(None)
        .max_headers(MAX_PARSED_HEADER_FIELDS)
        .max_buf_size(CONNECTION_BUFFER_BYTES);
    builder
}

fn http2_settings(streams: StreamExecutor, max_streams: u32) -> http2::Builder<StreamExecutor> {
    let mut builder = http2::Builder::new(streams);
    builder
        .timer(AwakeTimer)
        .max_concurrent_streams(max_streams)
        .max_header_list_size(CONNECTION_BUFFER_BYTES as u32)
        .initial_stream_window_size(H2_WINDOW_BYTES)
        .max_send_buf_size(H2_SEND_BUFFER_BYTES)
        .keep_alive_interval(H2_PING_INTERVAL);
    builder
}

impl Ending {
    /// Completes when idle connections must close because the server drains. Never completes for a late
    /// connection.
    async fn begun(&mut self) {
        if self.is_late {
            return std::future::pending().await;
        }
        let _ = self.phase.wait_for(|phase| *phase >= Phase::Draining).await;
    }

    /// Completes when a connection must close after its responses. After a handover, a connection first
    /// gets time for a request that its client may be sending.
    async fn told_to_close(&mut self) {
        let phase = &mut self.phase;
        let handed_over = phase
            .wait_for(|phase| *phase >= Phase::HandedOver)
            .await
            .is_ok_and(|phase| *phase == Phase::HandedOver);
        if handed_over {
            let ending = phase.wait_for(|phase| *phase >= Phase::Draining);
            let _ = tokio::time::timeout(HANDOVER_GRACE, ending).await;
        }
    }
}

/// A connection of either version of HTTP, which ends when it is polled to its end.
trait Drain: Future<Output = hyper::Result<()>> {
    /// Makes the connection end once its running responses have been sent.
    fn drain(self: Pin<&mut Self>);
}

impl<S, B> Drain for http1::UpgradeableConnection<Io, S>
where
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body<Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
    Self: Future<Output = hyper::Result<()>>,
{
    fn drain(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<S, B> Drain for http2::Connection<Io, S, StreamExecutor>
where
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body<Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
    StreamExecutor: Http2ServerConnExec<S::Future, B>,
    Self: Future<Output = hyper::Result<()>>,
{
    fn drain(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Runs the connection until it ends, its client has `gone`, or it has closed as requested. Returns whether
/// the client has disconnected.
async fn drive<C: Drain>(
    mut connection: Pin<&mut C>,
    mut gone: Pin<&mut (dyn Future<Output = ()> + Send)>,
    state: &ConnectionState,
    mut ending: Ending,
) -> bool {
    let mut closing = false;
    loop {
        tokio::select! {
            result = connection.as_mut() => {
                if let Err(error) = result {
                    tracing::debug!(%error, "connection ended");
                }
                return false;
            }
            () = gone.as_mut() => {
                tracing::debug!("the client has gone");
                return true;
            }
            () = state.end_requested() => break,
            () = state.close_requested(), if !closing => {}
            () = ending.told_to_close(), if !closing && !ending.is_late && state.ending().is_none() => {
                state.set_ending();
                // A request of which a part has arrived gets a response, even if the rest does not arrive;
                // that response closes the connection.
                if state.is_reading_head() && state.n_in_flight() == 0 {
                    continue;
                }
            }
        }
        closing = true;
        connection.as_mut().drain();
    }
    connection.as_mut().drain();
    let _ = tokio::time::timeout(CUT_GRACE, connection).await;
    false
}

/// Performs the TLS handshake if the server has a certificate; `None` if it fails or exceeds `timeout`.
async fn encrypt<R>(
    server: &Server<R>,
    stream: ClientSocket,
    timeout: Duration,
    memory: &mut Reservation,
) -> Option<ClientStream> {
    let Some(tls) = &server.tls else { return Some(ClientStream::Plain(stream)) };
    memory.add_always(TLS_BYTES);
    // Boxed, because a handshake's state is larger than all later state of a connection.
    let stream = Box::pin(tokio::time::timeout(timeout, tls.accept(stream, server.raw_responses.not_https)))
        .await
        .ok()??;
    Some(ClientStream::Tls(Box::new(stream)))
}
