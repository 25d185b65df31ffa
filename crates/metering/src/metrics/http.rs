//! Metrics of HTTP exchanges. Does not know models.

use http::{Method, StatusCode};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

const DURATION_BUCKETS_S: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// Labels of an exchange: the route (never the path, of which clients could create any number), method and
/// status.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct HttpLabels {
    handler: String,
    method: &'static str,
    status: u16,
}

impl HttpLabels {
    /// Creates the labels of an exchange; `handler` is a route of the table or `none`.
    pub fn new(handler: &str, method: &Method, status: StatusCode) -> Self {
        let known = ["GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"];
        let method = known.into_iter().find(|name| *name == method.as_str()).unwrap_or("OTHER");
        Self { handler: handler.to_owned(), method, status: status.as_u16() }
    }
}

/// Counters of HTTP exchanges, shared by clones.
#[derive(Debug, Clone)]
pub struct HttpMetrics {
    requests: Family<HttpLabels, Counter>,
    duration: Family<HttpLabels, Histogram, fn() -> Histogram>,
}

impl HttpMetrics {
    /// Registers the counters at a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let requests = Family::default();
        let duration = Family::new_with_constructor((|| Histogram::new(DURATION_BUCKETS_S)) as fn() -> _);
        registry.register("http_requests", "HTTP requests answered", requests.clone());
        registry.register(
            "http_request_duration_seconds",
            "From a request's head to the end of its response",
            duration.clone(),
        );
        Self { requests, duration }
    }

    /// Counts an exchange that took `seconds`.
    pub fn observe(&self, labels: &HttpLabels, seconds: f64) {
        self.requests.get_or_create(labels).inc();
        self.duration.get_or_create(labels).observe(seconds);
    }
}
