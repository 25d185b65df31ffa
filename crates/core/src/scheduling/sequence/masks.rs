//! State of a running sequence's masks: whether its next token has to wait for them. Does not evaluate
//! masks.

use std::sync::Arc;

use super::{Running, Sequence};
use crate::scheduling::batch::ScheduledBatch;
use crate::scheduling::masks::SequenceMasks;
use crate::time::{Nanos, Timestamp};

/// Duration of the evaluation of a mask from which the sequence waits for its masks before its next token
/// has a place in a step.
pub const SLOW_MASKS: Nanos = Nanos::from_ms(8);

/// Number of consecutive quick masks after which a sequence no longer waits.
const N_QUICK: u32 = 4;

/// State of a sequence's masks.
#[derive(Debug, Default)]
pub(super) struct MaskState {
    /// Masks that were begun before the step that needs them.
    begun: Option<Arc<SequenceMasks>>,
    /// Time since which the next token waits for the masks.
    awaited_since: Option<Timestamp>,
    /// Largest number of reported masks.
    reported: Option<u64>,
    is_slow: bool,
    /// Number of consecutive quick masks.
    n_quick: u32,
}

impl Sequence<Running> {
    /// Whether tokens are chosen under a constraint.
    pub fn is_constrained(&self) -> bool {
        let sampling = &self.request.sampling;
        self.request.constraint.is_some() && sampling.beams.is_none() && sampling.max_tokens > 0
    }

    /// Time since which the last token has had no place in a step because its masks are not evaluated.
    pub fn awaits_masks_since(&self) -> Option<Timestamp> {
        self.state.masks.awaited_since
    }

    /// Whether the masks are begun before a step needs them, so that the drafts cannot change.
    pub(crate) fn has_begun_masks(&self) -> bool {
        self.state.masks.begun.is_some()
    }

    /// Whether the masks must be evaluated before the token has a place in a step.
    pub(crate) fn has_slow_masks(&self) -> bool {
        self.state.masks.is_slow
    }

    /// Makes the token wait for its masks from now on, before it has a place in a step.
    pub(crate) fn set_slow_masks(&mut self) {
        self.state.masks.is_slow = true;
        self.state.masks.n_quick = 0;
    }

    /// Begins the masks of the next token, with its drafts, and waits for them.
    pub(crate) fn begin_masks(&mut self, number: u64, now: Timestamp) -> Option<Arc<SequenceMasks>> {
        let constraint = Arc::clone(self.request.constraint.as_ref()?);
        let output = [&self.tokens[self.n_prompt()..], self.drafts()].concat();
        let (sampling, n_drafts) = (Arc::clone(&self.request.sampling), self.drafts().len());
        let mut masks = SequenceMasks::new(self.id(), constraint, sampling, output, n_drafts).awaited();
        masks.set_number(number);
        let masks = Arc::new(masks);
        self.state.masks.begun = Some(Arc::clone(&masks));
        self.state.masks.awaited_since = Some(now);
        Some(masks)
    }

    /// Keeps masks that were not evaluated in time, and waits for them unless they were reported meanwhile.
    pub(crate) fn await_masks(&mut self, masks: Option<&Arc<SequenceMasks>>, now: Timestamp) {
        let state = &mut self.state.masks;
        let is_reported = state.reported == masks.map(|masks| masks.number());
        state.begun = masks.cloned();
        state.awaited_since = (!is_reported).then_some(now);
    }

    /// Notes that the masks with this number are evaluated, and the time that it took.
    pub(crate) fn note_masks(&mut self, number: u64, took: Nanos) {
        let state = &mut self.state.masks;
        if took >= SLOW_MASKS {
            (state.is_slow, state.n_quick) = (true, 0);
        } else {
            state.n_quick += 1;
            state.is_slow &= state.n_quick < N_QUICK;
        }
        if state.begun.as_ref().is_some_and(|masks| masks.number() == number) {
            state.awaited_since = None;
        }
        // Reports may overtake each other; later masks have larger numbers.
        state.reported = state.reported.max(Some(number));
    }

    /// Assigns the begun masks to the sequence that was added to a batch last, if they are those of its
    /// drafts. Otherwise assigns this number to its present masks.
    pub(crate) fn give_masks(&mut self, n_drafts: usize, number: u64, batch: &mut ScheduledBatch) {
        let n_output = self.tokens.len() - self.n_prompt();
        let drafts = &self.state.drafts[..n_drafts.min(self.state.drafts.len())];
        let begun = self.state.masks.begun.take();
        match begun.filter(|masks| masks.fit(n_output, drafts)) {
            Some(masks) => batch.set_masks(masks),
            None => batch.number_masks(number),
        }
    }
}
