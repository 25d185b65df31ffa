//! Which step in flight a running sequence has a share in. Does not know what the step computes.

use super::{Running, Sequence};

impl Sequence<Running> {
    /// Whether it has a share in a step in flight.
    pub fn is_in_flight(&self) -> bool {
        self.state.step.is_some()
    }

    /// Whether it has a share in step `number`.
    pub(crate) fn is_in_step(&self, number: u64) -> bool {
        self.state.step == Some(number)
    }

    /// Turns what was scheduled for it into a share of step `number`. How much that is stands in the batch.
    pub(crate) fn join_step(&mut self, number: u64) {
        self.state.step = Some(number);
        self.state.n_scheduled = 0;
        self.state.n_scheduled_drafts = 0;
        self.state.n_to_draft = 0;
    }

    /// Has no share in a step any more.
    pub(crate) fn leave_step(&mut self) {
        self.state.step = None;
    }
}
