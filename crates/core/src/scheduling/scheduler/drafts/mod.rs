//! Drafts in a step (speculative decoding), which take the tokens, time and blocks that are left when all
//! sequences have their tokens. If the executor proposed none, they are looked up in the sequence or left
//! to the executor's draft model, as many as are expected to pay. Does not read tokens.

mod price;

use super::Scheduler;
use super::budget::StepBudget;
use crate::request::TokenId;
use crate::scheduling::sequence::{Running, Sequence};
use price::{DraftPrice, Undrafted};

/// Number of drafts that are looked up even if none is worth verifying, to compare look-up with the draft
/// model.
const N_JUDGED: usize = 4;

/// Number of passes of the draft model that always run; those after the warm-up measure the time of a pass.
const N_TIMED_PASSES: u64 = 8;

/// Number of steps without a pass of the draft model after which one is timed again, since its time may
/// have changed.
const STEPS_BETWEEN_PASSES: u64 = 128;

impl Scheduler {
    /// Chooses the source and the number of drafts for the sequences that sample in this step and have no
    /// drafts of the executor. Chooses none before the first step was timed.
    pub(super) fn choose_drafts(&mut self) {
        let method = self.config.speculation;
        if !method.looks_up() && !method.asks_draft_model() {
            return;
        }
        let settling = self.running.iter().filter(|sequence| has_token_chosen(sequence));
        let step = settling.fold(Undrafted::default(), Undrafted::plus);
        let Some(price) = step.price(&self.step_time, &self.draft_time) else { return };
        for i in 0..self.running.len() {
            if !may_be_drafted(&self.running[i]) {
                continue;
            }
            let most = self.n_possible_drafts(i);
            let sequence = &mut self.running[i];
            // A first output token does not wait for the draft model to read the prompt.
            let asks_model = method.asks_draft_model() && sequence.state.n_scheduled == 1;
            let speculation = &sequence.state.speculation;
            let (of_lookup, of_model) =
                (speculation.of_lookup.probability(), speculation.of_model.probability());
            let start = sequence.tokens().len();
            if method.looks_up() {
                let n = price.n_worthwhile(of_lookup, start, most);
                let n_looked_up = if asks_model { n.max(N_JUDGED.min(most)) } else { n };
                let is_found =
                    n_looked_up > 0 && sequence.look_up(self.config.prompt_lookup_min as usize, n_looked_up);
                if is_found && n > 0 && (!asks_model || of_lookup >= of_model) {
                    sequence.use_looked_up(n);
                    continue;
                }
            }
            if asks_model {
                sequence.leave_drafts_to_model(price.n_worth_making(of_model, start, most));
            }
        }
        limit_passes(&mut self.running, &price);
        if method.asks_draft_model() {
            self.time_draft_model();
        }
    }

    /// Leaves one draft to the draft model if it has not been timed often enough and has no other draft to
    /// make.
    fn time_draft_model(&mut self) {
        let is_known =
            self.n_draft_passes >= N_TIMED_PASSES && self.n_steps_without_pass < STEPS_BETWEEN_PASSES;
        if is_known || self.running.iter().any(|sequence| sequence.state.n_to_draft > 0) {
            return;
        }
        let has_no_drafts =
            |sequence: &Sequence<Running>| may_be_drafted(sequence) && sequence.state.n_scheduled == 1;
        let may_draft = |&i: &usize| has_no_drafts(&self.running[i]) && self.n_possible_drafts(i) > 0;
        if let Some(i) = (0..self.running.len()).find(may_draft) {
            self.running[i].leave_drafts_to_model(1);
        }
    }

    /// Adds drafts to the sequences that sample in this step. Comes last in planning, and blocks of
    /// rejected drafts are released when the step ends, so that drafts displace neither a token nor a
    /// sequence. The rest of the step is divided evenly, in the order of running.
    pub(super) fn schedule_drafts(&mut self, budget: &mut StepBudget) {
        let mut n_drafting = self.running.iter().filter(|s| can_draft(s)).count();
        for i in 0..self.running.len() {
            if !can_draft(&self.running[i]) {
                continue;
            }
            let n_scheduled = self.running[i].state.n_scheduled;
            let start = self.running[i].n_planned() + n_scheduled;
            let share = budget.tokens_in_time(&self.step_time, start).div_ceil(n_drafting);
            n_drafting -= 1;
            let n = share.min(self.n_useful_drafts(i)).min(self.n_allocatable(i) - n_scheduled);
            let state = &mut self.running[i].state;
            let is_of_model = std::mem::replace(&mut state.n_to_draft, 0) > 0;
            if n > 0 {
                state.n_scheduled_drafts = n;
                if is_of_model {
                    // Counted when they have been made.
                    state.n_to_draft = n;
                } else {
                    self.counters.drafts += 1;
                    self.counters.draft_tokens += n as u64;
                }
                budget.give_back(self.running[i].n_planned(), n_scheduled);
                self.schedule(i, n_scheduled + n, budget);
            }
        }
    }

    /// Number of drafts that sequence `i` has or may have made, and that could become tokens.
    fn n_useful_drafts(&self, i: usize) -> usize {
        let sequence = &self.running[i];
        sequence.drafts().len().max(sequence.state.n_to_draft).min(self.n_possible_drafts(i))
    }

    /// Number of drafts of sequence `i` that may be computed in a step: 0 for a beam, otherwise within the
    /// limits on drafts, and with the token after them within the request's `max_tokens` and the context.
    fn n_possible_drafts(&self, i: usize) -> usize {
        let sequence = &self.running[i];
        if sequence.request.sampling.beams.is_some() {
            return 0;
        }
        let n_output = sequence.tokens().len() - sequence.n_prompt();
        let of_request = (sequence.request.sampling.max_tokens as usize).saturating_sub(n_output + 1);
        let of_context = self.admission.max_sequence_tokens().saturating_sub(sequence.tokens().len() + 1);
        let of_step = self.config.max_draft_tokens.min(sequence.request.sampling.max_draft_tokens);
        of_request.min(of_context).min(of_step as usize)
    }

    /// The drafts that an executor proposed and that can be scheduled.
    pub(super) fn usable_drafts<'a>(&self, proposed: &'a [TokenId]) -> &'a [TokenId] {
        let most = proposed.len().min(self.config.max_draft_tokens as usize);
        let in_vocabulary = |token: &&TokenId| self.admission.is_token(**token);
        &proposed[..proposed[..most].iter().take_while(in_vocabulary).count()]
    }
}

/// Reduces the number of drafts of the draft model until each of its passes is worth its time.
fn limit_passes(running: &mut [Sequence<Running>], price: &DraftPrice<'_>) {
    let most = running.iter().map(|sequence| sequence.state.n_to_draft).max().unwrap_or(0);
    let is_worthwhile = |&depth: &usize| {
        let drafting = running.iter().filter(|sequence| sequence.state.n_to_draft >= depth);
        let of_sequence = |sequence: &Sequence<Running>| {
            (sequence.state.speculation.of_model.probability(), sequence.tokens().len())
        };
        price.is_pass_worthwhile(depth, drafting.map(of_sequence))
    };
    let n_passes = (1..=most).take_while(is_worthwhile).count();
    for sequence in running {
        sequence.state.n_to_draft = sequence.state.n_to_draft.min(n_passes);
    }
}

/// Whether the step computes all tokens of the sequence, so that drafts can follow, and drafts are allowed.
fn can_draft(sequence: &Sequence<Running>) -> bool {
    (!sequence.drafts().is_empty() || sequence.state.n_to_draft > 0) && has_token_chosen(sequence)
}

/// Whether drafts may be made for the sequence: it has none, and its masks were not begun without them.
fn may_be_drafted(sequence: &Sequence<Running>) -> bool {
    has_token_chosen(sequence) && sequence.drafts().is_empty() && !sequence.has_begun_masks()
}

/// Whether the step computes all tokens of the sequence and samples the next one. No draft can follow a
/// token that a step in flight samples.
fn has_token_chosen(sequence: &Sequence<Running>) -> bool {
    let n_scheduled = sequence.state.n_scheduled;
    n_scheduled > 0
        && n_scheduled == sequence.n_missing()
        && sequence.request.sampling.max_tokens > 0
        && sequence.carried_from().is_none()
        && sequence.awaits_masks_since().is_none()
}
