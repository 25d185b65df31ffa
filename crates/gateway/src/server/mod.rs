//! What the gateway adds to `throng_http`'s server: the checks of each request's head, routing, the headers
//! of every response, and the log of refusals. Does not know what the routes do.

mod guard;
mod raw_responses;
mod refusals;
mod respond;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use throng_http::memory::MemoryBudget;
use throng_http::{Listener, Phase, Server, ServerLimits, Shutdown, Timeouts, Tls};
use tokio::sync::watch;

use self::guard::{Guard, cors, root_path};
use self::raw_responses::RAW_RESPONSES;
use self::respond::Responder;
use crate::config::GatewayConfig;
use throng_metering::metrics::HttpMetrics;
use throng_metering::observation::Observation;

/// Streams of an HTTP/2 client at a time.
pub(crate) const MAX_CLIENT_STREAMS: u32 = 128;

/// Services of a server, and the state shared with them.
#[derive(Debug)]
pub(crate) struct Service {
    /// Services that answer requests at present.
    pub served: watch::Receiver<Served>,
    /// Configuration.
    pub config: GatewayConfig,
    /// Phase of the server on its way to its end.
    pub phase: watch::Sender<Phase>,
    /// Bounds what all requests hold.
    pub memory: Arc<MemoryBudget>,
    /// Encrypts the connections.
    pub tls: Option<Arc<Tls>>,
    /// Streams of an HTTP/2 connection at a time.
    pub max_streams: u32,
    /// Observers of finished requests.
    pub observation: Arc<Observation>,
}

/// Router, path rewriting and counters for requests that arrive now.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    /// Takes a request, which brings its [`Caller`] as an extension; its response brings the
    /// [`axum::extract::MatchedPath`] of its route.
    ///
    /// [`Caller`]: crate::caller::Caller
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

/// Serves until `shutdown` completes and the running requests have ended or been cut.
pub(crate) async fn serve(
    service: Service,
    listener: Listener,
    shutdown: impl Future<Output = impl Into<Shutdown>>,
) -> io::Result<()> {
    let guard = Guard::new(&service.config, &listener);
    let cors = cors::layer(&service.config.access).unwrap_or_default();
    let service = Arc::new(service);
    let server = Server {
        limits: service.limits(),
        phase: service.phase.clone(),
        memory: service.memory.clone(),
        tls: service.tls.clone(),
        needs_credentials: service.config.access.needs_key(),
        raw_responses: RAW_RESPONSES,
        responder: Responder::new(service, guard, cors),
    };
    server.serve(listener, shutdown).await
}

impl Service {
    fn limits(&self) -> ServerLimits {
        let config = &self.config.server;
        ServerLimits {
            max_connections: config.max_connections,
            max_streams: self.max_streams,
            timeouts: Timeouts {
                header: Duration::from_secs(config.header_timeout_s),
                idle: Duration::from_secs(config.idle_timeout_s),
                write: Duration::from_secs(config.slow_reader_timeout_s),
            },
            shutdown_timeout: Duration::from_secs(config.shutdown_timeout_s),
        }
    }
}
