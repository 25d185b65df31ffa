//! Priority of light tenants, which request little beside others that request much. Their prompts are
//! computed in steps without other tenants' tokens, at most every second step, and while there is such a
//! tenant the other steps are short: its first token comes about as soon as if it were alone. Does not know
//! blocks.

use crate::request::TenantId;
use crate::scheduling::scheduler::budget::StepBudget;
use crate::scheduling::scheduler::step_time::StepShape;
use crate::scheduling::scheduler::{Emit, Scheduler};
use crate::scheduling::sequence::{Running, Sequence};
use crate::time::{Nanos, Timestamp};
use crate::timeline::request_trace::QueueCause;

/// Divisor of a tenant's share (the whole divided by the tenants that run or wait) that gives the bound for
/// a light tenant.
const PART_OF_SHARE: usize = 4;

/// Time after a request of a light tenant for which the others' steps stay short.
const REMEMBERED: Nanos = Nanos::from_ms(60_000);

/// Maximum share of a short step that its fixed work may take: a shorter step would waste the machine.
const FIXED_PART_OF_STEP: f64 = 0.1;

/// Factor by which chunks may lengthen a short step, so that prompts make progress.
const MOST_SLOWDOWN: f64 = 1.25;

/// State of the preference for light tenants.
#[derive(Debug, Default)]
pub(in crate::scheduling::scheduler) struct LowShareTenants {
    /// The light tenant whose request was started last, and the time.
    latest: Option<(TenantId, Timestamp)>,
    /// Whether the newest step had only light tenants.
    has_stepped_alone: bool,
}

/// Running work of one tenant, or of all.
#[derive(Debug, Default, Clone, Copy)]
struct Load {
    n_sequences: usize,
    /// Number of tokens to compute.
    n_tokens: usize,
}

impl Load {
    fn plus(self, sequence: &Sequence<Running>) -> Self {
        let n_tokens = self.n_tokens + sequence.n_missing().max(1);
        Self { n_sequences: self.n_sequences + 1, n_tokens }
    }
}

impl Scheduler {
    /// Whether the next sequence is of a light tenant that was served no more than any running one.
    pub(in crate::scheduling::scheduler) fn first_is_light(&mut self) -> bool {
        let Some(head) = self.waiting.first_mut() else { return false };
        let (tenant, n_tokens) = (head.request.tenant.clone(), head.tokens().len());
        let served = self.waiting.served(&tenant);
        let (mut own, mut all) = (Load::default(), Load::default());
        let mut other: Option<&TenantId> = None;
        for sequence in &self.running {
            let owner = &sequence.request.tenant;
            all = all.plus(sequence);
            if *owner == tenant {
                own = own.plus(sequence);
            } else if other != Some(owner) {
                if self.waiting.served(owner) < served {
                    return false;
                }
                other = Some(owner);
            }
        }
        if other.is_none() {
            return false;
        }
        // One that was found to ask for little stays it up to its whole share.
        let is_known = self.light.latest.as_ref().is_some_and(|(latest, _)| *latest == tenant);
        let parts = if is_known { 1 } else { PART_OF_SHARE } * self.n_tenants();
        let n_own = own.n_sequences + self.waiting.len_of(&tenant);
        n_own * parts <= all.n_sequences + self.waiting.len()
            || (own.n_tokens + n_tokens) * parts <= all.n_tokens + n_tokens
    }

    /// Marks a starting sequence if its tenant is light, and records that tenant.
    pub(in crate::scheduling::scheduler) fn note_light(
        &mut self,
        sequence: &mut Sequence<Running>,
        has_low_share: bool,
        now: Timestamp,
    ) {
        sequence.state.has_low_share = has_low_share;
        if has_low_share {
            self.light.latest = Some((sequence.request.tenant.clone(), now));
        }
    }

    /// Schedules chunks of light tenants only; `false` if there are none, and after a step that did so.
    pub(in crate::scheduling::scheduler) fn schedule_light_alone(
        &mut self,
        budget: &mut StepBudget,
        now: Timestamp,
        emit: &mut Emit<'_>,
    ) -> bool {
        if std::mem::take(&mut self.light.has_stepped_alone) {
            return false;
        }
        self.waiting.cause = Some(QueueCause::StepTokens);
        if self.light.latest.is_none() && self.waiting.is_empty() {
            return false;
        }
        let left_out = self.running.iter().filter(|sequence| sequence.n_missing() == 1);
        let left_out = left_out.map(|sequence| StepShape::of_sequence(sequence.n_planned(), 1));
        let left_out = left_out.fold(StepShape::default(), StepShape::plus);
        if left_out.n_tokens > 0 {
            let left_out_ms = self.step_time.predict_ms(left_out).unwrap_or(0.0);
            budget.target_ms = Some(f64::from(self.config.inter_token_target_ms).max(left_out_ms));
        }
        self.schedule_light(budget, now, emit);
        self.light.has_stepped_alone = budget.has_work();
        self.light.has_stepped_alone
    }

    /// Schedules chunks of light tenants; `false` if the blocks are used up, so that no other sequence may
    /// be admitted either.
    pub(in crate::scheduling::scheduler) fn schedule_light(
        &mut self,
        budget: &mut StepBudget,
        now: Timestamp,
        emit: &mut Emit<'_>,
    ) -> bool {
        let n_preempted = self.counters.preemptions;
        if self.light.latest.is_some() {
            self.schedule_chunks(|sequence| sequence.state.has_low_share, budget);
        }
        let has_blocks = self.counters.preemptions == n_preempted;
        if has_blocks && !self.waiting.is_empty() {
            self.admit(true, budget, now, emit);
        }
        has_blocks
    }

    /// Limits the step's time in favour of a recent light tenant, if others run or wait.
    pub(in crate::scheduling::scheduler) fn shorten(&self, budget: &mut StepBudget, now: Timestamp) {
        let Some((tenant, at)) = &self.light.latest else { return };
        if now.since(*at) > REMEMBERED {
            return;
        }
        let running = self.running.iter().map(|sequence| &sequence.request.tenant);
        if running.chain(self.waiting.tenants()).all(|other| other == tenant) {
            return;
        }
        let Some(fixed_ms) = self.step_time.predict_ms(StepShape::default()) else { return };
        let without_chunks_ms = self.step_time.predict_ms(budget.shape).unwrap_or(0.0);
        let short_ms = (fixed_ms / FIXED_PART_OF_STEP).max(MOST_SLOWDOWN * without_chunks_ms);
        budget.target_ms = Some(budget.target_ms.map_or(short_ms, |target_ms| target_ms.min(short_ms)));
    }
}
