//! Order in which masks are evaluated: quick ones in order of arrival, slow ones by tenant, least used time
//! first. Does not know threads, and how masks are evaluated.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use throng_core::constraint::ConstraintError;
use throng_core::request::{RequestId, TenantId};
use throng_core::scheduling::masks::SequenceMasks;
use throng_core::scheduling::scheduler::{SLOW_MASKS, SLOW_MASKS_REMEMBERED};
use throng_core::time::Nanos;

/// Time after a slow mask of a tenant in which masks of its requests that have had none yet count as slow.
const REMEMBERED: Duration = Duration::from_nanos(SLOW_MASKS_REMEMBERED.0);

/// Maximum number of tenants without requests whose slow masks are recorded.
const MAX_IDLE_TENANTS: usize = 1024;

/// A kind of masks, which has threads of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Masks of requests whose masks have always been quick.
    Quick,
    /// Masks of requests that had a slow one.
    Slow,
}

/// Masks that wait for a thread: at most one entry for each running sequence.
#[derive(Debug, Default)]
pub struct MaskQueue {
    requests: HashMap<RequestId, RequestRecord>,
    tenants: BTreeMap<TenantId, TenantRecord>,
    quick: VecDeque<Arc<SequenceMasks>>,
}

#[derive(Debug)]
struct RequestRecord {
    tenant: TenantId,
    /// Lane of the request; `None` before its first mask.
    lane: Option<Lane>,
    /// Time that was not reported yet.
    uncharged: Nanos,
}

#[derive(Debug, Default)]
struct TenantRecord {
    n_requests: usize,
    /// Time of its masks, raised when it returns after a time without requests, so that absence saves up
    /// nothing.
    spent: u64,
    slow_at: Option<Instant>,
    slow: VecDeque<Arc<SequenceMasks>>,
}

impl TenantRecord {
    fn was_slow(&self, now: Instant) -> bool {
        self.slow_at.is_some_and(|at| now.duration_since(at) < REMEMBERED)
    }
}

impl MaskQueue {
    /// Notes a request that has masks.
    pub fn open(&mut self, request: RequestId, tenant: &TenantId, now: Instant) {
        if self.requests.contains_key(&request) {
            return;
        }
        let floor = self.tenants.values().filter(|t| t.n_requests > 0).map(|t| t.spent).min().unwrap_or(0);
        let idle = self.tenants.values().filter(|tenant| tenant.n_requests == 0).count();
        self.tenants
            .retain(|_, tenant| tenant.n_requests > 0 || (tenant.was_slow(now) && idle <= MAX_IDLE_TENANTS));
        let entry = self.tenants.entry(tenant.clone()).or_default();
        if entry.n_requests == 0 {
            entry.spent = entry.spent.max(floor);
        }
        entry.n_requests += 1;
        let record = RequestRecord { tenant: tenant.clone(), lane: None, uncharged: Nanos::default() };
        self.requests.insert(request, record);
    }

    /// Removes a request. A step in flight does not wait for its masks.
    pub fn close(&mut self, request: RequestId) {
        let Some(record) = self.requests.remove(&request) else { return };
        let is_other = |masks: &Arc<SequenceMasks>| {
            let is_other = masks.sequence().request != request;
            if !is_other {
                masks.fail(ConstraintError::Failed);
            }
            is_other
        };
        self.quick.retain(is_other);
        if let Some(tenant) = self.tenants.get_mut(&record.tenant) {
            tenant.slow.retain(is_other);
            tenant.n_requests = tenant.n_requests.saturating_sub(1);
        }
    }

    /// Adds masks. Those of a request that is not open are not evaluated, since its answer has no reader.
    pub fn push(&mut self, masks: Arc<SequenceMasks>, now: Instant) {
        let record = self.requests.get(&masks.sequence().request);
        let Some((lane, tenant)) =
            record.and_then(|record| Some((record.lane, self.tenants.get_mut(&record.tenant)?)))
        else {
            masks.fail(ConstraintError::Failed);
            return;
        };
        match lane {
            Some(Lane::Slow) => tenant.slow.push_back(masks),
            None if tenant.was_slow(now) => tenant.slow.push_back(masks),
            _ => self.quick.push_back(masks),
        }
    }

    /// Takes the next masks for a thread of this lane. A thread for slow masks takes quick ones if there
    /// are no slow ones.
    pub fn pop(&mut self, lane: Lane, now: Instant) -> Option<Arc<SequenceMasks>> {
        if lane == Lane::Slow {
            let waiting = self.tenants.values_mut().filter(|tenant| !tenant.slow.is_empty());
            let next = waiting.min_by_key(|tenant| tenant.spent).and_then(|tenant| tenant.slow.pop_front());
            if next.is_some() {
                return next;
            }
        }
        while let Some(masks) = self.quick.pop_front() {
            let Some(record) = self.requests.get(&masks.sequence().request) else { continue };
            // Its tenant's first slow mask was evaluated while this one waited.
            match self.tenants.get_mut(&record.tenant) {
                Some(tenant) if lane == Lane::Quick && record.lane.is_none() && tenant.was_slow(now) => {
                    tenant.slow.push_back(masks);
                }
                _ => return Some(masks),
            }
        }
        None
    }

    /// Notes the time of a request's masks. If it is to be reported, returns the request's time since the
    /// last report.
    pub fn note(
        &mut self,
        request: RequestId,
        took: Nanos,
        is_reported: bool,
        now: Instant,
    ) -> Option<Nanos> {
        let record = self.requests.get_mut(&request)?;
        let is_slow = took >= SLOW_MASKS;
        record.lane = Some(if is_slow { Lane::Slow } else { Lane::Quick });
        record.uncharged.0 += took.0;
        if let Some(tenant) = self.tenants.get_mut(&record.tenant) {
            tenant.spent += took.0;
            if is_slow {
                tenant.slow_at = Some(now);
            }
        }
        (is_reported || is_slow).then(|| std::mem::take(&mut record.uncharged))
    }

    /// Whether slow masks wait.
    pub fn has_slow(&self) -> bool {
        self.tenants.values().any(|tenant| !tenant.slow.is_empty())
    }

    /// Removes all waiting masks.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use throng_core::constraint::{TokenConstraint, TokenMask};
    use throng_core::request::SequenceId;

    use super::*;

    #[derive(Debug)]
    struct Free;

    impl TokenConstraint for Free {
        fn mask(&self, _: &[u32], mask: &mut TokenMask) -> Result<(), ConstraintError> {
            mask.allow_all();
            Ok(())
        }
    }

    fn masks(request: u64) -> Arc<SequenceMasks> {
        let sequence = SequenceId { request: RequestId(request), index: 0 };
        Arc::new(SequenceMasks::new(sequence, Arc::new(Free), Arc::default(), Vec::new(), 0))
    }

    fn popped(queue: &mut MaskQueue, lane: Lane, now: Instant) -> Option<u64> {
        queue.pop(lane, now).map(|masks| masks.sequence().request.0)
    }

    const SLOW: Nanos = Nanos::from_ms(40);

    #[test]
    fn the_tenant_that_used_least_time_goes_first() {
        let (mut queue, now) = (MaskQueue::default(), Instant::now());
        let (attacker, other) = (TenantId("attacker".into()), TenantId("other".into()));
        (0..32).for_each(|request| queue.open(RequestId(request), &attacker, now));
        for request in 0..32 {
            queue.note(RequestId(request), SLOW, true, now);
            queue.push(masks(request), now);
        }
        assert_eq!(popped(&mut queue, Lane::Quick, now), None);
        queue.open(RequestId(100), &other, now);
        queue.note(RequestId(100), SLOW, true, now);
        queue.push(masks(100), now);
        assert_eq!(popped(&mut queue, Lane::Slow, now), Some(0));
        queue.note(RequestId(0), SLOW, true, now);
        assert_eq!(popped(&mut queue, Lane::Slow, now), Some(1));
        queue.note(RequestId(1), SLOW, true, now);
        // A tenant that came begins where the others are: they take turns from there.
        assert_eq!(popped(&mut queue, Lane::Slow, now), Some(100));
    }

    #[test]
    fn first_masks_of_a_tenant_that_was_slow_do_not_wait_among_quick_ones() {
        let (mut queue, now) = (MaskQueue::default(), Instant::now());
        let (attacker, other) = (TenantId("attacker".into()), TenantId("other".into()));
        for request in 0..3 {
            queue.open(RequestId(request), &attacker, now);
            queue.push(masks(request), now);
        }
        queue.open(RequestId(100), &other, now);
        queue.push(masks(100), now);
        assert_eq!(popped(&mut queue, Lane::Quick, now), Some(0));
        assert_eq!(queue.note(RequestId(0), SLOW, false, now), Some(SLOW));
        assert_eq!(popped(&mut queue, Lane::Quick, now), Some(100));
        assert!(queue.has_slow());
        queue.close(RequestId(1));
        assert_eq!(popped(&mut queue, Lane::Slow, now), Some(2));
        queue.open(RequestId(4), &attacker, now + REMEMBERED);
        queue.push(masks(4), now + REMEMBERED);
        assert_eq!(popped(&mut queue, Lane::Quick, now + REMEMBERED), Some(4));
    }

    #[test]
    fn quick_masks_are_told_with_the_next_report() {
        let (mut queue, now) = (MaskQueue::default(), Instant::now());
        queue.open(RequestId(1), &TenantId("a".into()), now);
        assert_eq!(queue.note(RequestId(1), Nanos(5), false, now), None);
        assert_eq!(queue.note(RequestId(1), Nanos(7), true, now), Some(Nanos(12)));
        queue.close(RequestId(1));
        assert_eq!(queue.note(RequestId(1), Nanos(7), true, now), None);
    }
}
