//! Steps for executors that compute no tokens: decoding sequences get shares without content
//! ([`PlainShare`]). They are planned and completed as all others, and decisions do not differ. Does not know
//! which executor runs a step.

use super::ahead::Ahead;
use super::{Emit, Event, Failure, Scheduler};
use crate::request::TenantId;
use crate::scheduling::batch::{
    ChosenToken, PlainShare, ScheduledBatch, SequenceError, StepOutput, TokenLogprob,
};
use crate::scheduling::sequence::{Running, Sequence, Share};
use crate::time::Timestamp;

/// Progress of completing a step: the next plain share, and the probable place of the next sequence.
#[derive(Debug, Default)]
pub(super) struct PlainCursor {
    next: usize,
    pub(super) guess: usize,
    /// Tenant of the shares that were completed last, and the number of its tokens that are not charged.
    tenant: Option<TenantId>,
    n_uncharged: u64,
}

/// Adds a share without content to the step, if the sequence needs no more.
pub(super) fn push_plain(
    sequence: &mut Sequence<Running>,
    ahead: &Ahead,
    number: u64,
    batch: &mut ScheduledBatch,
) -> bool {
    let Some(start) = sequence.plain_start() else { return false };
    let Some(plain) = &sequence.state.plain else { return false };
    let may_be_followed = ahead.can_carry_plain(plain, start + 1);
    batch.push_plain(plain.id, sequence.rank.arrival, start, start + 1 - plain.n_prompt);
    let sequence_idx = batch.n_shares() as u32 - 1;
    sequence.join_step(Share { step: number, sequence_idx, n_tokens: 1, chooses: true, may_be_followed });
    true
}

impl Scheduler {
    /// The same scheduler for an executor that computes no tokens and needs no content of decoding sequences.
    #[must_use]
    pub fn with_plain_shares(self) -> Self {
        Self { has_plain_shares: true, ..self }
    }

    /// Completes the plain shares that stand before the batch's sequence `sequence_idx`.
    pub(super) fn complete_plain(
        &mut self,
        (batch, number): (&ScheduledBatch, u64),
        sequence_idx: usize,
        output: &StepOutput,
        cursor: &mut PlainCursor,
        now: Timestamp,
        emit: &mut Emit<'_>,
    ) {
        while let Some(share) = batch.plain_shares().get(cursor.next) {
            if share.n_before as usize > sequence_idx {
                break;
            }
            let token = output.plain(cursor.next);
            cursor.next += 1;
            let Some(i) = self.find_plain(share, number, cursor.guess) else { continue };
            cursor.guess = i + 1;
            let sequence = &mut self.running[i];
            sequence.leave_step(number);
            let Some(token) = token else {
                self.failed.push((share.id.request, Failure::Sequence(SequenceError::NoToken)));
                continue;
            };
            sequence.push(token, now);
            let chosen = TokenLogprob { token, logprob: 0.0, rank: 0 };
            emit(Event::Token { sequence: share.id, token: ChosenToken { chosen, top: &[] } });
            assert_eq!(
                share.start as usize,
                sequence.n_computed(),
                "a share that does not go on from the last"
            );
            sequence.state.ending = sequence.plain_ending(self.admission.max_sequence_tokens());
            self.has_ending |= sequence.state.ending.is_some();
            sequence.advance_plain(&mut self.pool);
            self.counters.output_tokens += 1;
            let Some(plain) = &self.running[i].state.plain else { continue };
            if cursor.tenant.as_ref().is_none_or(|tenant| !std::sync::Arc::ptr_eq(&tenant.0, &plain.tenant.0))
            {
                let before = cursor.tenant.replace(plain.tenant.clone());
                let n_before = std::mem::take(&mut cursor.n_uncharged);
                before.into_iter().for_each(|tenant| self.waiting.charge_outputs(&tenant, n_before));
            }
            cursor.n_uncharged += 1;
        }
        if sequence_idx == usize::MAX
            && let Some(tenant) = &cursor.tenant
        {
            self.waiting.charge_outputs(tenant, std::mem::take(&mut cursor.n_uncharged));
        }
    }

    /// Index of the running sequence of a plain share in step `number`. The search begins at `guess`.
    fn find_plain(&self, share: &PlainShare, number: u64, guess: usize) -> Option<usize> {
        let is_it = |&i: &usize| {
            let sequence = &self.running[i];
            sequence.rank.arrival == share.arrival
                && sequence.rank.index == share.id.index
                && sequence.is_in_step(number)
        };
        (guess..self.running.len()).chain(0..guess.min(self.running.len())).find(is_it)
    }
}
