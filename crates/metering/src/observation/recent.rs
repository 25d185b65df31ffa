//! The latest finished requests, for `/explain`. Bounded. A tenant can only find its own, the operator all.
//! Does not format them.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use super::RequestReport;

/// Time since a tenant's last request after which it is no longer active.
const ACTIVE: Duration = Duration::from_secs(300);

/// A ring buffer of the latest finished requests of all tenants.
#[derive(Debug, Default)]
pub struct RecentRequests {
    max_requests: usize,
    reports: Mutex<VecDeque<Arc<RequestReport>>>,
}

impl RecentRequests {
    /// Creates a ring buffer of at most `max_requests`.
    pub fn new(max_requests: usize) -> Self {
        Self { max_requests, reports: Mutex::default() }
    }

    /// Adds a finished request, if it had a valid key (or needed none) and addressed a model: other
    /// requests would displace those.
    pub fn push(&self, report: RequestReport) {
        if self.max_requests == 0 || !report.is_explained() {
            return;
        }
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = if reports.len() >= self.max_requests { reports.pop_front() } else { None };
        reports.push_back(Arc::new(report));
        drop(reports);
        // Dropped outside of the lock: this may be the last owner.
        drop(oldest);
    }

    /// The tenant's latest request with this id; any tenant's if `tenant` is `None`.
    pub fn find(&self, tenant: Option<&str>, request_id: &str) -> Option<Arc<RequestReport>> {
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |report: &&Arc<RequestReport>| {
            tenant.is_none_or(|tenant| report.is_of(tenant)) && report.request_id == request_id
        };
        reports.iter().rev().find(is_it).cloned()
    }

    /// Number of tenants with a request in the buffer that arrived within [`ACTIVE`].
    pub fn n_active_tenants(&self) -> usize {
        let since = SystemTime::now().checked_sub(ACTIVE);
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        let active = reports.iter().filter(|report| since.is_none_or(|since| report.arrived >= since));
        active.filter_map(|report| report.tenant.as_deref()).collect::<BTreeSet<_>>().len()
    }

    /// The tenant's latest requests, the newest first; all tenants' if `tenant` is `None`.
    pub fn latest(&self, tenant: Option<&str>, n: usize) -> Vec<Arc<RequestReport>> {
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        let is_shown = |report: &&Arc<RequestReport>| tenant.is_none_or(|tenant| report.is_of(tenant));
        reports.iter().rev().filter(is_shown).take(n).cloned().collect()
    }
}
