//! Sequences with slow masks: they sit out steps until their masks are evaluated, so that they delay no
//! others, and their tenants are charged the time. Does not evaluate masks; the caller reports the time.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::OUTPUT_TOKEN_COST;
use crate::constraint::ConstraintError;
use crate::request::{SequenceId, TenantId};
use crate::scheduling::masks::SequenceMasks;
use crate::scheduling::scheduler::{Emit, Failure, Scheduler, StepShape};
pub use crate::scheduling::sequence::SLOW_MASKS;
use crate::scheduling::sequence::{Running, Sequence};
use crate::scheduling::step_output::SequenceError;
use crate::time::{Nanos, Timestamp};

/// Time after a slow mask of a tenant in which its new sequences wait for their masks.
pub const SLOW_MASKS_REMEMBERED: Nanos = Nanos::from_ms(10_000);

/// Maximum number of tenants with slow masks that are recorded.
const MAX_TENANTS: usize = 1024;

/// Assumed duration of a token in ms before a step was timed.
const USUAL_TOKEN_MS: f64 = 5.0;

/// Whether the planned step has sequences of more than one tenant, or without constraints.
pub(in crate::scheduling::scheduler) fn has_others(running: &[Sequence<Running>]) -> bool {
    let mut scheduled = running.iter().filter(|sequence| sequence.state.n_scheduled > 0);
    let Some(first) = scheduled.next() else { return false };
    let is_other =
        |other: &Sequence<Running>| !other.is_constrained() || other.request.tenant != first.request.tenant;
    !first.is_constrained() || scheduled.any(is_other)
}

/// Report of evaluated masks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaskReport {
    /// Sequence that the masks are for.
    pub sequence: SequenceId,
    /// Number that identifies the masks.
    pub number: u64,
    /// Duration of the evaluation of these masks.
    pub took: Nanos,
    /// Time of all masks of the request since the last report.
    pub charged: Nanos,
}

/// Tenants that had a slow mask lately, and the time of it.
#[derive(Debug, Default)]
pub(in crate::scheduling::scheduler) struct SlowMasks {
    tenants: BTreeMap<TenantId, Timestamp>,
    /// Masks to be evaluated before a step needs them.
    begun: Vec<Arc<SequenceMasks>>,
    /// Number of the latest masks, counted from 1.
    n_made: u64,
}

impl SlowMasks {
    /// Returns a number that no masks have yet.
    pub fn next_number(&mut self) -> u64 {
        self.n_made += 1;
        self.n_made
    }

    fn note(&mut self, tenant: &TenantId, now: Timestamp) {
        if self.tenants.len() >= MAX_TENANTS && !self.tenants.contains_key(tenant) {
            let oldest = self.tenants.iter().min_by_key(|(_, at)| **at).map(|(tenant, _)| tenant.clone());
            oldest.map(|oldest| self.tenants.remove(&oldest));
        }
        self.tenants.insert(tenant.clone(), now);
    }

    fn is_slow(&self, tenant: &TenantId, now: Timestamp) -> bool {
        self.tenants.get(tenant).is_some_and(|at| now.since(*at) <= SLOW_MASKS_REMEMBERED)
    }
}

impl Scheduler {
    /// Notes evaluated masks: a sequence that waited for them can join the next step, and its tenant is
    /// charged the time.
    pub fn note_masks(&mut self, report: &MaskReport, now: Timestamp) {
        let Some(progress) = self.requests.get(&report.sequence.request) else { return };
        let tenant = progress.request.tenant.clone();
        let token_ms = self.step_time.predict_ms(StepShape::of_sequence(0, 1)).unwrap_or(USUAL_TOKEN_MS);
        let n_tokens = report.charged.as_secs_f64() * 1e3 / token_ms.max(0.001);
        self.waiting.charge(&tenant, (n_tokens * OUTPUT_TOKEN_COST as f64) as u64);
        if report.took >= SLOW_MASKS {
            self.slow_masks.note(&tenant, now);
        }
        if let Some(sequence) = self.running.iter_mut().find(|sequence| sequence.id() == report.sequence) {
            sequence.note_masks(report.number, report.took);
        }
    }

    /// Takes the masks that must be evaluated although no step has them yet.
    pub fn take_begun_masks(&mut self) -> impl Iterator<Item = Arc<SequenceMasks>> {
        self.slow_masks.begun.drain(..)
    }

    /// Time at which the first sequence has waited for its masks for `patience`.
    pub fn masks_deadline(&self, patience: Nanos) -> Option<Timestamp> {
        if self.slow_masks.n_made == 0 {
            return None;
        }
        self.running.iter().filter_map(|s| s.awaits_masks_since()).min().map(|since| since + patience)
    }

    /// Fails the requests that have waited for masks for `patience`.
    pub fn fail_overdue_masks(&mut self, patience: Nanos, now: Timestamp, emit: &mut Emit<'_>) {
        let failure = Failure::Sequence(SequenceError::Constraint(ConstraintError::LimitExceeded));
        let is_overdue = |since: Timestamp| since + patience <= now;
        let overdue = self.running.iter().filter(|s| s.awaits_masks_since().is_some_and(is_overdue));
        self.failed.extend(overdue.map(|sequence| (sequence.request.id, failure)));
        self.fail_requests(now, emit);
    }

    /// Lets a sequence that was just started wait for its masks if its tenant has had slow ones lately.
    pub(in crate::scheduling::scheduler) fn start_masks(&mut self, i: usize, now: Timestamp) {
        let sequence = &mut self.running[i];
        if sequence.is_constrained() && self.slow_masks.is_slow(&sequence.request.tenant, now) {
            sequence.set_slow_masks();
            self.begin_masks(i, now);
        }
    }

    /// Begins the masks of a sequence that was just given a token, if its masks are slow.
    pub(in crate::scheduling::scheduler) fn continue_masks(&mut self, i: usize, now: Timestamp) {
        let sequence = &self.running[i];
        let is_begun = sequence.has_begun_masks() || sequence.is_in_flight();
        if sequence.is_constrained() && sequence.has_slow_masks() && !is_begun {
            self.begin_masks(i, now);
        }
    }

    fn begin_masks(&mut self, i: usize, now: Timestamp) {
        let masks = self.running[i].begin_masks(self.slow_masks.next_number(), now);
        self.slow_masks.begun.extend(masks);
    }
}
