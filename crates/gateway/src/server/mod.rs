//! Gateway's part of the server beside `throng_http`: checks of each request's head, routing, headers of
//! every response, and the log of refusals. Does not know the handlers' work.

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

/// Maximum number of concurrent streams of an HTTP/2 client.
pub(crate) const MAX_CLIENT_STREAMS: u32 = 128;

/// Services of a server, and the state shared with them.
#[derive(Debug)]
pub(crate) struct Service {
    /// Present services for requests.
    pub served: watch::Receiver<Served>,
    /// Settings of the gateway.
    pub config: GatewayConfig,
    /// Phase of the server on its way to its end.
    pub phase: watch::Sender<Phase>,
    /// Budget of memory held by all requests.
    pub memory: Arc<MemoryBudget>,
    /// TLS settings, if connections are encrypted.
    pub tls: Option<Arc<Tls>>,
    /// Maximum number of concurrent streams of an HTTP/2 connection.
    pub max_streams: u32,
    /// Observers of finished requests.
    pub observation: Arc<Observation>,
}

/// Router, path rewriting and counters for requests that arrive now.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    /// Router. A request has its [`Caller`] as an extension; its response has the
    /// [`axum::extract::MatchedPath`] of its route.
    ///
    /// [`Caller`]: crate::caller::Caller
    pub router: axum::Router,
    /// Function that maps a misspelt path of a client to the path of its route.
    pub tidy: fn(http::Uri) -> http::Uri,
    /// Counts HTTP exchanges.
    pub metrics: HttpMetrics,
}

/// Checks the settings for proxies and web pages.
///
/// # Errors
/// The setting, its value, and the expected value.
pub(crate) fn check(config: &GatewayConfig) -> Result<(), cors::Fault> {
    root_path::check(&config.server.root_path)?;
    cors::check_origins(&config.access.allowed_origins)?;
    cors::layer(&config.access).map(drop)
}

/// Serves until `shutdown` completes and the running requests have ended or were aborted.
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
