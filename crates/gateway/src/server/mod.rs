//! The listening socket: accepting, the limits of a connection, draining at shutdown. Refuses to know routes and
//! models: a request goes in, a response comes out.

mod client_io;
mod connection;
mod context;
mod guard;
mod http1_chunks;
mod http1_gate;
mod http1_head;
mod respond;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

pub(crate) use context::{HeldBody, RequestContext};

use self::client_io::{ClientIo, IoTimeouts};
use self::connection::ConnectionState;
use self::guard::Guard;
use self::http1_gate::Http1Gate;
use self::respond::Responder;
use crate::app::App;
use crate::config::ServerConfig;
use crate::memory::Part;

/// Kept small so that a reader that has stopped is felt before megabytes wait in the kernel (which doubles it).
const SEND_BUFFER_BYTES: usize = 16 << 10;
/// hyper's buffers; must hold a request's head as large as [`guard`] still answers politely.
const CONNECTION_BUFFER_BYTES: usize = 128 << 10;
/// What a connection holds while it is quiet: hyper's first buffers, its task, the state beside it.
const CONNECTION_BYTES: usize = 16 << 10;
const MAX_PARSED_HEADER_FIELDS: usize = 256;
const H2_MAX_STREAMS: u32 = 128;
const H2_WINDOW_BYTES: u32 = 64 << 10;
const H2_PING_INTERVAL: Duration = Duration::from_secs(20);
/// After streams have been cut, their last words may take this long.
const CUT_GRACE: Duration = Duration::from_secs(2);
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// How far a server is on its way to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Requests are welcome.
    Serving,
    /// No new requests; the running ones may finish.
    Draining,
    /// Running requests end now.
    Cut,
}

/// Whether only this machine can connect to `address`.
pub(crate) fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Serves until `shutdown` completes and the running requests have ended or been cut.
pub(crate) async fn serve(
    app: Arc<App>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let config = &app.config.server;
    let guard = Guard::new(&app.config, is_loopback(listener.local_addr()?));
    let responder = Arc::new(Responder::new(app.clone(), guard));
    let mut connections = JoinSet::new();
    {
        let slots = Arc::new(Semaphore::new(config.max_connections.clamp(1, Semaphore::MAX_PERMITS)));
        tokio::pin!(shutdown);
        loop {
            let accepted = tokio::select! {
                () = &mut shutdown => break,
                Some(_) = connections.join_next() => continue,
                accepted = accept(&listener, &slots) => accepted,
            };
            let Some((stream, permit)) = accepted else { continue };
            let connection = serve_connection(responder.clone(), stream, app.phase.subscribe());
            connections.spawn(async move {
                connection.await;
                drop(permit);
            });
        }
    }
    drop(listener);
    drain(&app, connections).await;
    Ok(())
}

async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = slots.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, permit)),
        Err(error) => {
            // Out of descriptors, most likely: time must pass before trying again makes sense.
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(ACCEPT_RETRY).await;
            None
        }
    }
}

async fn drain(app: &App, mut connections: JoinSet<()>) {
    app.phase.send_replace(Phase::Draining);
    let all_done = async |connections: &mut JoinSet<()>| while connections.join_next().await.is_some() {};
    let timeout = Duration::from_secs(app.config.server.shutdown_timeout_s);
    if tokio::time::timeout(timeout, all_done(&mut connections)).await.is_ok() {
        return;
    }
    tracing::warn!(n_connections = connections.len(), "cutting what still runs");
    app.phase.send_replace(Phase::Cut);
    let _ = tokio::time::timeout(CUT_GRACE, all_done(&mut connections)).await;
    connections.shutdown().await;
}

async fn serve_connection(responder: Arc<Responder>, stream: TcpStream, mut phase: watch::Receiver<Phase>) {
    let config = &responder.app().config.server;
    if let Err(error) = tune(&stream, config) {
        tracing::debug!(%error, "cannot set a socket option");
    }
    let mut memory = responder.app().memory.reservation(Part::Sockets);
    memory.add_always(CONNECTION_BYTES);
    let state = Arc::new(ConnectionState::default());
    let timeouts = IoTimeouts {
        header: Duration::from_secs(config.header_timeout_s),
        idle: Duration::from_secs(config.idle_timeout_s),
        write: Duration::from_secs(config.slow_reader_timeout_s),
    };
    let io = ClientIo::new(stream, state.clone(), timeouts);
    let needs_key = !responder.app().keys.is_empty();
    let io = TokioIo::new(Http1Gate::new(io, state.clone(), needs_key));
    let service = {
        let (responder, state) = (responder.clone(), state.clone());
        hyper::service::service_fn(move |request| {
            let (responder, state) = (responder.clone(), state.clone());
            async move { Ok::<_, std::convert::Infallible>(responder.respond(request, &state).await) }
        })
    };
    let builder = protocols();
    let connection = builder.serve_connection(io, service);
    tokio::pin!(connection);
    let mut closing = false;
    loop {
        tokio::select! {
            result = &mut connection => {
                if let Err(error) = result {
                    tracing::debug!(%error, "connection ended");
                }
                return;
            }
            () = state.close_requested(), if !closing => {}
            _ = phase.wait_for(|phase| *phase >= Phase::Draining), if !closing => {}
        }
        closing = true;
        connection.as_mut().graceful_shutdown();
    }
}

fn protocols() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .header_read_timeout(None)
        .max_headers(MAX_PARSED_HEADER_FIELDS)
        .max_buf_size(CONNECTION_BUFFER_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(H2_MAX_STREAMS)
        .max_header_list_size(CONNECTION_BUFFER_BYTES as u32)
        .initial_stream_window_size(H2_WINDOW_BYTES)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .keep_alive_interval(H2_PING_INTERVAL);
    builder
}

fn tune(stream: &TcpStream, config: &ServerConfig) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(Duration::from_secs(config.idle_timeout_s)))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(Duration::from_secs(config.slow_reader_timeout_s)))?;
    Ok(())
}
