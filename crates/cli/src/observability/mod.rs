//! Observers of finished requests: the access log and a trace collector, as far as they are configured.

mod access_log;
mod following_file;
mod otlp;
mod spans;

use std::sync::Arc;

use anyhow::{Context, Result};
use throng_gateway::{ObservabilityConfig, RequestObserver};

use access_log::AccessLog;
use otlp::OtlpExporter;

/// Creates the configured observers.
///
/// # Errors
/// When the access log cannot be opened, the collector's address is not valid, or no thread can be started.
pub fn observers(config: &ObservabilityConfig) -> Result<Vec<Arc<dyn RequestObserver>>> {
    let mut observers: Vec<Arc<dyn RequestObserver>> = Vec::new();
    if let Some(path) = &config.access_log {
        let log = AccessLog::open(path);
        let log = log.with_context(|| format!("cannot open the access log {}", path.display()))?;
        observers.push(Arc::new(log));
    }
    if let Some(endpoint) = &config.otlp_endpoint {
        observers.push(Arc::new(OtlpExporter::start(endpoint)?));
    }
    Ok(observers)
}
