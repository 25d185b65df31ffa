//! What is known of each request once it is over: for the log, the access log, traces and `/explain`. Does
//! not know routes.

mod explain;
mod generation;
mod recent;
mod report;
mod stages;
mod trace_parent;

use std::fmt::Debug;
use std::sync::Arc;

pub use self::explain::{Explanation, Summary};
pub use self::generation::GenerationRecord;
pub use self::recent::RecentRequests;
pub use self::report::{GenerationReport, RequestPhase, RequestReport, ToolReport};
pub use self::stages::{Stage, Stages};
pub use self::trace_parent::TraceParent;

/// Is told of each request when everything about it is over. Must not wait: a thread that serves connections
/// calls it.
pub trait RequestObserver: Debug + Send + Sync {
    /// A request is over.
    fn finished(&self, report: &RequestReport);
}

/// Observers of finished requests.
#[derive(Debug, Default)]
pub struct Observation {
    /// The latest ones.
    pub recent: Arc<RecentRequests>,
    /// The others.
    pub observers: Vec<Arc<dyn RequestObserver>>,
    /// Whether the beginning of each body is kept for them.
    pub keeps_bodies: bool,
}

impl Observation {
    /// Tells all of them, and the log.
    pub fn finished(&self, report: RequestReport) {
        report.log();
        self.observers.iter().for_each(|observer| observer.finished(&report));
        self.recent.push(report);
    }
}
