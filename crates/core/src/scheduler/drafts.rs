//! Drafts in a step (speculative decoding): tokens, time and blocks that are left when all have their own. Does not know
//! where drafts come from.

use super::Scheduler;
use super::budget::StepBudget;
use crate::request::TokenId;
use crate::sequence::{Running, Sequence};

impl Scheduler {
    /// Adds their drafts to the sequences that have a token chosen in this step. Comes last in planning and gives blocks of
    /// rejected drafts back when the step ends, so that drafts displace neither a token nor a sequence. What is left is
    /// divided evenly, in the order of running.
    pub(super) fn schedule_drafts(&mut self, budget: &mut StepBudget) {
        let mut n_drafting = self.running.iter().filter(|s| can_draft(s)).count();
        for i in 0..self.running.len() {
            if !can_draft(&self.running[i]) {
                continue;
            }
            let n_scheduled = self.running[i].state.n_scheduled;
            let start = self.running[i].n_computed() + n_scheduled;
            let share = budget.tokens_in_time(&self.step_time, start).div_ceil(n_drafting);
            n_drafting -= 1;
            let n = share.min(self.n_useful_drafts(i)).min(self.n_allocatable(i) - n_scheduled);
            if n > 0 {
                budget.give_back(self.running[i].n_computed(), n_scheduled);
                self.schedule(i, n_scheduled + n, budget);
                self.running[i].state.n_scheduled_drafts = n;
                self.counters.draft_tokens += n as u64;
            }
        }
    }

    /// How many drafts of sequence `i` could become tokens: with the token after them they stay within the request's
    /// `max_tokens` and the context.
    fn n_useful_drafts(&self, i: usize) -> usize {
        let sequence = &self.running[i];
        let n_output = sequence.tokens().len() - sequence.n_prompt();
        let of_request = (sequence.request.sampling.max_tokens as usize).saturating_sub(n_output + 1);
        let of_context = self.admission.max_sequence_tokens().saturating_sub(sequence.tokens().len() + 1);
        sequence.drafts().len().min(of_request).min(of_context)
    }

    /// The drafts an executor proposed, as far as they can be scheduled.
    pub(super) fn usable_drafts<'a>(&self, proposed: &'a [TokenId]) -> &'a [TokenId] {
        let most = proposed.len().min(self.config.max_draft_tokens as usize);
        let in_vocabulary = |token: &&TokenId| self.admission.is_token(**token);
        &proposed[..proposed[..most].iter().take_while(in_vocabulary).count()]
    }
}

/// Whether the step computes all its tokens, so that drafts can follow them.
fn can_draft(sequence: &Sequence<Running>) -> bool {
    let n_scheduled = sequence.state.n_scheduled;
    n_scheduled > 0 && n_scheduled == sequence.n_missing() && !sequence.drafts().is_empty()
}
