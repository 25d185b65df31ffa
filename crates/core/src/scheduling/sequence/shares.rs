//! The shares of a running sequence in steps in flight: where its next share begins, and whether it may be
//! planned before these have ended. Does not know the work of a step.

use super::{Running, Sequence};

/// Share of a sequence in a step in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    /// Number of the step.
    pub(crate) step: u64,
    /// Index among the step's sequences.
    pub(crate) sequence_idx: u32,
    /// Number of new tokens, drafts included.
    pub(crate) n_tokens: u32,
    /// Whether the step samples the token after them.
    pub(crate) chooses: bool,
    /// Whether the next share may be planned before this one has ended; a token that this one samples is
    /// then carried.
    pub(crate) may_be_followed: bool,
}

/// Shares in the steps in flight, the oldest first. The oldest two have their place in the sequence, since
/// few have more.
#[derive(Debug, Default)]
pub(super) struct Shares {
    oldest: Option<Share>,
    second: Option<Share>,
    later: Vec<Share>,
}

impl Shares {
    fn iter(&self) -> impl Iterator<Item = &Share> {
        self.oldest.iter().chain(&self.second).chain(&self.later)
    }

    fn push(&mut self, share: Share) {
        match (self.oldest, self.second) {
            (None, _) => self.oldest = Some(share),
            (_, None) => self.second = Some(share),
            _ => self.later.push(share),
        }
    }

    #[inline]
    fn remove(&mut self, step: u64) {
        let is_of_step = |share: &Option<Share>| share.is_some_and(|share| share.step == step);
        // No step has two shares of a sequence.
        if is_of_step(&self.oldest) {
            self.oldest = self.second.take();
        } else if is_of_step(&self.second) {
            self.second = None;
        } else {
            return self.later.retain(|share| share.step != step);
        }
        if !self.later.is_empty() {
            self.second = Some(self.later.remove(0));
        }
    }

    fn newest(&self) -> Option<&Share> {
        self.later.last().or(self.second.as_ref()).or(self.oldest.as_ref())
    }

    fn newest_mut(&mut self) -> Option<&mut Share> {
        self.later.last_mut().or(self.second.as_mut()).or(self.oldest.as_mut())
    }
}

impl Sequence<Running> {
    /// Whether the sequence has a share in a step in flight.
    pub fn is_in_flight(&self) -> bool {
        self.newest_share().is_some()
    }

    /// Number of tokens whose keys and values are in the blocks once the steps in flight have ended, which
    /// is where its next share begins.
    pub fn n_planned(&self) -> usize {
        self.state.n_computed + self.state.shares.iter().map(|share| share.n_tokens as usize).sum::<usize>()
    }

    /// Number of tokens that the next share may compute: the missing ones, and those that steps in flight
    /// sample, if they can be carried. 0 for a beam that waits for the others, and for a sequence that waits
    /// for the step in flight or for blocks from a store. Excludes the last token of a sequence that waits
    /// for its masks.
    pub fn n_missing(&self) -> usize {
        if self.is_restoring() {
            return 0;
        }
        let n = match self.newest_share() {
            None => self.tokens.len() - self.state.n_computed,
            Some(share) if !share.may_be_followed => 0,
            Some(_) => self.tokens.len() + self.n_to_come() - self.n_planned(),
        };
        n.saturating_sub(usize::from(self.awaits_masks_since().is_some()))
    }

    /// Index, in the step in flight, of the sequence that samples the token of the next share, if that step
    /// does.
    pub(crate) fn carried_from(&self) -> Option<usize> {
        self.newest_share().filter(|share| share.chooses).map(|share| share.sequence_idx as usize)
    }

    /// Whether it has a share in step `number`.
    pub(crate) fn is_in_step(&self, number: u64) -> bool {
        self.state.shares.iter().any(|share| share.step == number)
    }

    /// Turns its scheduled tokens into a share of a step.
    pub(crate) fn join_step(&mut self, share: Share) {
        self.state.shares.push(share);
        self.state.n_scheduled = 0;
        self.state.n_scheduled_drafts = 0;
        self.state.n_to_draft = 0;
    }

    /// Removes its share in step `number`.
    pub(crate) fn leave_step(&mut self, number: u64) {
        self.state.shares.remove(number);
    }

    /// Notes that it has no share in the step planned last. A token is carried only from one step to the
    /// next.
    pub(crate) fn pass_step(&mut self) {
        if let Some(newest) = self.state.shares.newest_mut() {
            newest.may_be_followed &= !newest.chooses;
        }
    }

    /// Number of tokens that steps in flight sample.
    fn n_to_come(&self) -> usize {
        self.state.shares.iter().filter(|share| share.chooses).count()
    }

    fn newest_share(&self) -> Option<Share> {
        self.state.shares.newest().copied()
    }
}
