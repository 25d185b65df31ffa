//! The latest finished requests, for `/explain`. Bounded. A tenant finds its own only, the operator all. Does
//! not know how they are shown.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use super::RequestReport;

/// A tenant whose last request is longer ago is not active.
const ACTIVE: Duration = Duration::from_secs(300);

/// A ring of the latest finished requests of all tenants.
#[derive(Debug, Default)]
pub struct RecentRequests {
    max_requests: usize,
    reports: Mutex<VecDeque<Arc<RequestReport>>>,
}

impl RecentRequests {
    /// A ring of at most `max_requests`.
    pub fn new(max_requests: usize) -> Self {
        Self { max_requests, reports: Mutex::default() }
    }

    /// Adds a request that is over, if it had a valid key (or needed none) and asked a model for something:
    /// others would push those out.
    pub fn push(&self, report: RequestReport) {
        if self.max_requests == 0 || !report.is_explained() {
            return;
        }
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = if reports.len() >= self.max_requests { reports.pop_front() } else { None };
        reports.push_back(Arc::new(report));
        drop(reports);
        // Outside of the lock: it may be the last holder.
        drop(oldest);
    }

    /// The latest request with this id among the tenant's; of all when there is no tenant.
    pub fn find(&self, tenant: Option<&str>, request_id: &str) -> Option<Arc<RequestReport>> {
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |report: &&Arc<RequestReport>| {
            tenant.is_none_or(|tenant| report.is_of(tenant)) && report.request_id == request_id
        };
        reports.iter().rev().find(is_it).cloned()
    }

    /// Number of tenants that have a request among the latest that arrived within [`ACTIVE`].
    pub fn n_active_tenants(&self) -> usize {
        let since = SystemTime::now().checked_sub(ACTIVE);
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        let active = reports.iter().filter(|report| since.is_none_or(|since| report.arrived >= since));
        active.filter_map(|report| report.tenant.as_deref()).collect::<BTreeSet<_>>().len()
    }

    /// The tenant's latest requests, the newest first; those of all when there is no tenant.
    pub fn latest(&self, tenant: Option<&str>, n: usize) -> Vec<Arc<RequestReport>> {
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        let is_shown = |report: &&Arc<RequestReport>| tenant.is_none_or(|tenant| report.is_of(tenant));
        reports.iter().rev().filter(is_shown).take(n).cloned().collect()
    }
}
