//! Sends spans to an OpenTelemetry collector: OTLP over HTTP as JSON, in batches, from a thread of its own.
//! Spans that the collector does not accept are dropped and counted. Does not know the content of spans.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use throng_gateway::{RequestObserver, RequestReport};

use super::spans::spans_of;
use crate::usage_error::UsageError;

/// Maximum number of requests in the queue.
const MAX_QUEUED_REQUESTS: usize = 1024;
/// Maximum number of requests in a batch.
const MAX_BATCH_REQUESTS: usize = 128;
/// Maximum time that a batch waits for more requests.
const BATCH_TIME: Duration = Duration::from_secs(1);
/// Timeout of the collector; the batch is then dropped.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum interval between warnings about dropped spans.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Queue of the sending thread.
#[derive(Debug)]
pub struct OtlpExporter {
    queue: SyncSender<Vec<Value>>,
    n_dropped: Arc<AtomicU64>,
}

impl OtlpExporter {
    /// Starts the thread that sends to `endpoint`; `/v1/traces` is appended to an address without a path.
    ///
    /// # Errors
    /// When the address is not plain HTTP, or no thread can be started.
    pub fn start(endpoint: &str) -> Result<Self> {
        let Some(rest) = endpoint.strip_prefix("http://").filter(|rest| !rest.is_empty()) else {
            return Err(UsageError(format!(
                "--otlp-traces-endpoint {endpoint:?}: must be http://HOST:PORT of a collector that takes OTLP over HTTP"
            ))
            .into());
        };
        let url = match rest.trim_end_matches('/') {
            host if !host.contains('/') => format!("http://{host}/v1/traces"),
            path => format!("http://{path}"),
        };
        let (queue, waiting) = sync_channel(MAX_QUEUED_REQUESTS);
        let n_dropped = Arc::new(AtomicU64::new(0));
        let agent = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).build().new_agent();
        let sender = Sender { agent, url, waiting, n_dropped: n_dropped.clone(), warned: None };
        std::thread::Builder::new()
            .name("throng-otlp".to_owned())
            .spawn(move || sender.run())
            .context("cannot start a thread")?;
        Ok(Self { queue, n_dropped })
    }
}

impl RequestObserver for OtlpExporter {
    fn finished(&self, report: &RequestReport) {
        let spans = spans_of(report);
        if !spans.is_empty() && self.queue.try_send(spans).is_err() {
            self.n_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The sending thread.
struct Sender {
    agent: ureq::Agent,
    url: String,
    waiting: Receiver<Vec<Value>>,
    n_dropped: Arc<AtomicU64>,
    warned: Option<Instant>,
}

impl Sender {
    fn run(mut self) {
        while let Ok(mut batch) = self.waiting.recv() {
            let until = Instant::now() + BATCH_TIME;
            let mut n_requests = 1;
            while n_requests < MAX_BATCH_REQUESTS {
                match self.waiting.recv_timeout(until.saturating_duration_since(Instant::now())) {
                    Ok(spans) => batch.extend(spans),
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
                }
                n_requests += 1;
            }
            if let Err(error) = self.send(&batch) {
                self.n_dropped.fetch_add(n_requests as u64, Ordering::Relaxed);
                self.warn(&error);
            }
        }
    }

    fn send(&self, spans: &[Value]) -> Result<(), ureq::Error> {
        let service = json!([
            {"key": "service.name", "value": {"stringValue": "throng"}},
            {"key": "service.version", "value": {"stringValue": env!("CARGO_PKG_VERSION")}},
        ]);
        let body = json!({"resourceSpans": [{
            "resource": {"attributes": service},
            "scopeSpans": [{"scope": {"name": "throng"}, "spans": spans}],
        }]});
        let request = self.agent.post(&self.url).header("content-type", "application/json");
        request.send(body.to_string()).map(drop)
    }

    fn warn(&mut self, error: &ureq::Error) {
        if self.warned.is_none_or(|at| at.elapsed() >= WARNING_INTERVAL) {
            self.warned = Some(Instant::now());
            let n_dropped = self.n_dropped.load(Ordering::Relaxed);
            tracing::warn!(%error, n_dropped, "the collector of traces did not take requests");
        }
    }
}
