//! Audit lines on their way to the database. Requests do not wait for it: lines enter a bounded queue; a
//! line without room is counted as lost and logged. Does not know requests.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use throng_store::{AuditEvent, AuditLine};

/// Maximum number of queued lines.
const MAX_WAITING: usize = 16_384;

/// Queue of audit lines.
#[derive(Debug, Default)]
pub(super) struct AuditQueue {
    waiting: Mutex<VecDeque<AuditLine>>,
    n_lost: AtomicU64,
    is_full: AtomicBool,
}

/// Facts about a request or a rule for the audit.
#[derive(Debug, Clone, Copy)]
pub struct Audited<'a> {
    /// Kind of the event.
    pub event: AuditEvent,
    /// Id of the request.
    pub request_id: &'a str,
    /// Organisation of the request.
    pub organisation: &'a str,
    /// Model of the request.
    pub model: &'a str,
    /// Regions that the request is restricted to.
    pub permitted: &'a str,
    /// Replica that the request was sent to, and the replica's region.
    pub place: [&'a str; 2],
    /// Reason for a refusal.
    pub reason: &'a str,
}

impl AuditQueue {
    /// Queues a line, or counts it as lost.
    pub fn push(&self, told: &Audited<'_>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let [replica, region] = told.place.map(str::to_owned);
        let line = AuditLine {
            id: uuid::Uuid::now_v7().simple().to_string(),
            at_unix_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            event: told.event,
            request_id: told.request_id.to_owned(),
            organisation: told.organisation.to_owned(),
            model: told.model.to_owned(),
            permitted: told.permitted.to_owned(),
            replica,
            region,
            reason: told.reason.to_owned(),
        };
        let mut waiting = self.waiting();
        if waiting.len() < MAX_WAITING {
            waiting.push_back(line);
            return;
        }
        drop(waiting);
        self.n_lost.fetch_add(1, Ordering::Relaxed);
        if !self.is_full.swap(true, Ordering::Relaxed) {
            tracing::error!("lines of the audit are lost: the database does not take them");
        }
    }

    /// The first lines, at most `n`, which stay queued until they are [removed](Self::forget).
    pub fn next(&self, n: usize) -> Vec<AuditLine> {
        self.waiting().iter().take(n).cloned().collect()
    }

    /// Removes the first lines, which are now in the database.
    pub fn forget(&self, n: usize) {
        self.waiting().drain(..n);
        if self.is_full.swap(false, Ordering::Relaxed) {
            let n_lost = self.n_lost.load(Ordering::Relaxed);
            tracing::warn!(n_lost, "lines of the audit are written again");
        }
    }

    /// Number of queued lines, and number of lost ones.
    pub fn n_waiting_and_lost(&self) -> (u64, u64) {
        (self.waiting().len() as u64, self.n_lost.load(Ordering::Relaxed))
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<AuditLine>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: usize = 500;

    fn told(request_id: &str) -> Audited<'_> {
        let [organisation, model, permitted] = ["acme", "small", "eu"];
        let place = ["gpu-1", "eu"];
        Audited { event: AuditEvent::Placed, request_id, organisation, model, permitted, place, reason: "" }
    }

    #[test]
    fn a_full_queue_counts_what_it_loses_and_keeps_what_it_has() {
        let queue = AuditQueue::default();
        for number in 0..MAX_WAITING + 3 {
            queue.push(&told(&number.to_string()));
        }
        assert_eq!(queue.n_waiting_and_lost(), (MAX_WAITING as u64, 3));
        let first = queue.next(BATCH);
        assert_eq!((first.len(), first[0].request_id.as_str()), (BATCH, "0"));
        assert_eq!(queue.next(BATCH), first, "until they are written");
        queue.forget(first.len());
        queue.push(&told("later"));
        assert_eq!(queue.next(BATCH)[0].request_id, BATCH.to_string());
        assert_eq!(queue.n_waiting_and_lost(), ((MAX_WAITING - BATCH + 1) as u64, 3));
    }
}
