//! Reports of finished requests: for the log, the access log, traces and `/explain`. Does not know routes.

mod explain;
mod generation;
mod ignored_log;
mod recent;
mod report;
mod stages;
mod trace_parent;

use std::fmt::Debug;
use std::sync::Arc;

pub use self::explain::{Explanation, Summary};
pub use self::generation::GenerationRecord;
pub use self::ignored_log::IgnoredLog;
pub use self::recent::RecentRequests;
pub use self::report::{GenerationReport, RequestPhase, RequestReport, ToolReport};
pub use self::stages::{Stage, Stages};
pub use self::trace_parent::TraceParent;

/// Receives a report of each request after its end. Must not block: threads that serve connections call it.
pub trait RequestObserver: Debug + Send + Sync {
    /// Receives the report of a finished request.
    fn finished(&self, report: &RequestReport);
}

/// Observers of finished requests.
#[derive(Debug, Default)]
pub struct Observation {
    /// The latest finished requests.
    pub recent: Arc<RecentRequests>,
    /// Further observers.
    pub observers: Vec<Arc<dyn RequestObserver>>,
    /// Whether reports contain the start of each body.
    pub keeps_bodies: bool,
}

impl Observation {
    /// Passes a report to all observers and the log.
    pub fn finished(&self, report: RequestReport) {
        report.log();
        self.observers.iter().for_each(|observer| observer.finished(&report));
        self.recent.push(report);
    }
}
