//! The shares that a running sequence has in steps in flight: where its next one begins, and whether it may
//! be planned before these have ended. Does not know what a step computes.

use super::{Running, Sequence};

/// Share of a sequence in a step in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    /// The number of the step.
    pub(crate) step: u64,
    /// Index among the step's sequences.
    pub(crate) sequence_idx: usize,
    /// New tokens, drafts included.
    pub(crate) n_tokens: usize,
    /// Whether the step chooses the token after them.
    pub(crate) chooses: bool,
    /// Whether the next share may be planned before this one has ended: if this one chooses a token, that is
    /// carried.
    pub(crate) may_be_followed: bool,
}

impl Sequence<Running> {
    /// Whether it has a share in a step in flight.
    pub fn is_in_flight(&self) -> bool {
        self.newest_share().is_some()
    }

    /// Tokens whose keys and values stand in the blocks once the steps in flight have ended: where its next
    /// share begins.
    pub fn n_planned(&self) -> usize {
        self.state.n_computed + self.state.shares.iter().map(|share| share.n_tokens).sum::<usize>()
    }

    /// Tokens that its next share may compute: those that it lacks, and those that steps in flight choose, if
    /// they can be carried. 0 for a beam that waits for the others, and for a sequence that waits for the
    /// step in flight. The last token of a sequence that waits for its masks is not among them.
    pub fn n_missing(&self) -> usize {
        let n = match self.newest_share() {
            None => self.tokens.len() - self.state.n_computed,
            Some(share) if !share.may_be_followed => 0,
            Some(_) => self.tokens.len() + self.n_to_come() - self.n_planned(),
        };
        n.saturating_sub(usize::from(self.awaits_masks_since().is_some()))
    }

    /// Origin of the token of its next share, if the step in flight chooses it: which of that step's
    /// sequences it is.
    pub(crate) fn carried_from(&self) -> Option<usize> {
        self.newest_share().filter(|share| share.chooses).map(|share| share.sequence_idx)
    }

    /// Whether it has a share in step `number`.
    pub(crate) fn is_in_step(&self, number: u64) -> bool {
        self.state.shares.iter().any(|share| share.step == number)
    }

    /// Turns what was scheduled for it into a share of a step.
    pub(crate) fn join_step(&mut self, share: Share) {
        self.state.shares.push(share);
        self.state.n_scheduled = 0;
        self.state.n_scheduled_drafts = 0;
        self.state.n_to_draft = 0;
    }

    /// Has no share in step `number` any more.
    pub(crate) fn leave_step(&mut self, number: u64) {
        self.state.shares.retain(|share| share.step != number);
    }

    /// Has no share in the step that was planned last. A token is carried from one step to the next, not
    /// further.
    pub(crate) fn pass_step(&mut self) {
        if let Some(newest) = self.state.shares.last_mut() {
            newest.may_be_followed &= !newest.chooses;
        }
    }

    /// Tokens that steps in flight choose.
    fn n_to_come(&self) -> usize {
        self.state.shares.iter().filter(|share| share.chooses).count()
    }

    fn newest_share(&self) -> Option<Share> {
        self.state.shares.last().copied()
    }
}
