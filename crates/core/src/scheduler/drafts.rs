//! Drafts in a step (speculative decoding): tokens, time and blocks that are left when all have their own. Where the executor
//! proposed none, they are looked up in the sequence, as many as are expected to pay. Does not know what they guess.

use super::Scheduler;
use super::budget::StepBudget;
use super::config::SpeculationMethod;
use super::step_time::{StepShape, StepTimeModel};
use crate::request::TokenId;
use crate::sequence::{Running, Sequence};

/// A draft is computed if its expected gain is at least this many times its expected cost: neither the estimate of
/// acceptance nor that of time is exact.
const MARGIN: f64 = 1.25;

/// A step in which the sequences that have a token chosen compute one token each, without chunks and drafts: what a token
/// costs that is not drafted. Chunks are left out, because they would be computed anyway.
#[derive(Debug, Clone, Copy, Default)]
struct Undrafted {
    shape: StepShape,
    /// Output tokens that it settles.
    n_settled: usize,
}

impl Undrafted {
    fn plus(self, sequence: &Sequence<Running>) -> Self {
        let shape = self.shape.plus(StepShape::of_sequence(sequence.tokens().len() - 1, 1));
        Self { shape, n_settled: self.n_settled + 1 }
    }

    /// How many drafts at the positions from `start` on, at most `most`, are worth their time if each is accepted with
    /// probability `acceptance` after all before it. Draft `j` is worth `acceptance^j` tokens; it must give more tokens in the
    /// time that it adds than the step gives in the same time.
    fn n_worthwhile(&self, acceptance: f64, start: usize, most: usize, model: &StepTimeModel) -> usize {
        let with_one_more = self.shape.plus(StepShape::of_sequence(start, 1));
        let predicted = (model.predict_ms(self.shape), model.predict_ms(with_one_more));
        let (Some(ms), Some(ms_with_one_more)) = predicted else { return 0 };
        let least_worth = MARGIN * self.n_settled as f64 * (ms_with_one_more - ms) / ms;
        let worth = std::iter::successors(Some(acceptance), |worth| Some(worth * acceptance));
        worth.take(most).take_while(|&worth| worth > least_worth).count()
    }
}

impl Scheduler {
    /// Looks up drafts for the sequences that have a token chosen in this step and no drafts of the executor. None before
    /// the first step was timed.
    pub(super) fn look_up_drafts(&mut self) {
        if self.config.speculation == SpeculationMethod::None {
            return;
        }
        let settling = self.running.iter().filter(|sequence| has_token_chosen(sequence));
        let step = settling.fold(Undrafted::default(), Undrafted::plus);
        let min_match = self.config.prompt_lookup_min as usize;
        for i in 0..self.running.len() {
            if !has_token_chosen(&self.running[i]) || !self.running[i].drafts().is_empty() {
                continue;
            }
            let most = self.n_possible_drafts(i).min(self.config.max_draft_tokens as usize);
            let sequence = &mut self.running[i];
            let acceptance = sequence.state.speculation.acceptance.probability();
            let n = step.n_worthwhile(acceptance, sequence.tokens().len(), most, &self.step_time);
            if n > 0 {
                sequence.look_up_drafts(min_match, n);
            }
        }
    }

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
                self.counters.drafts += 1;
                self.counters.draft_tokens += n as u64;
            }
        }
    }

    /// How many drafts sequence `i` has that could become tokens.
    fn n_useful_drafts(&self, i: usize) -> usize {
        self.running[i].drafts().len().min(self.n_possible_drafts(i))
    }

    /// How many drafts of sequence `i` could become tokens, none of a beam: with the token after them they stay within the request's
    /// `max_tokens` and the context.
    fn n_possible_drafts(&self, i: usize) -> usize {
        let sequence = &self.running[i];
        if sequence.request.sampling.beams.is_some() {
            return 0;
        }
        let n_output = sequence.tokens().len() - sequence.n_prompt();
        let of_request = (sequence.request.sampling.max_tokens as usize).saturating_sub(n_output + 1);
        let of_context = self.admission.max_sequence_tokens().saturating_sub(sequence.tokens().len() + 1);
        of_request.min(of_context)
    }

    /// The drafts an executor proposed, as far as they can be scheduled.
    pub(super) fn usable_drafts<'a>(&self, proposed: &'a [TokenId]) -> &'a [TokenId] {
        let most = proposed.len().min(self.config.max_draft_tokens as usize);
        let in_vocabulary = |token: &&TokenId| self.admission.is_token(**token);
        &proposed[..proposed[..most].iter().take_while(in_vocabulary).count()]
    }
}

/// Whether the step computes all its tokens, so that drafts can follow them, and it has drafts.
fn can_draft(sequence: &Sequence<Running>) -> bool {
    has_token_chosen(sequence) && !sequence.drafts().is_empty()
}

/// Whether the step computes all its tokens and settles the one after them.
fn has_token_chosen(sequence: &Sequence<Running>) -> bool {
    let n_scheduled = sequence.state.n_scheduled;
    n_scheduled > 0 && n_scheduled == sequence.n_missing() && sequence.request.sampling.max_tokens > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Nanos;

    /// A machine whose steps take `a + b · tokens` ms.
    fn machine(a: f64, b: f64) -> StepTimeModel {
        let mut model = StepTimeModel::default();
        for n in [1, 2, 4, 8, 16, 64, 256] {
            let shape = StepShape::of_sequence(0, n);
            model.observe(shape, Nanos(((a + b * n as f64) * 1e6) as u64));
        }
        model
    }

    /// Drafts of each of `n_users` whose steps give a token each.
    fn n_drafts(model: &StepTimeModel, n_users: usize, acceptance: f64) -> usize {
        let shape = StepShape { n_tokens: n_users, n_attended: n_users };
        Undrafted { shape, n_settled: n_users }.n_worthwhile(acceptance, 1, 16, model)
    }

    #[test]
    fn more_drafts_the_more_are_accepted() {
        let memory_bound = machine(20.0, 1.0);
        let of = |acceptance| n_drafts(&memory_bound, 1, acceptance);
        assert_eq!((of(0.05), of(0.5), of(0.99)), (0, 4, 16));
        let all: Vec<usize> = (0..100).map(|percent| of(f64::from(percent) / 100.0)).collect();
        assert!(all.is_sorted(), "{all:?}");
    }

    #[test]
    fn fewer_drafts_the_fuller_the_batch() {
        let machine = machine(20.0, 1.0);
        let all: Vec<usize> = (1..200).map(|n_users| n_drafts(&machine, n_users, 0.7)).collect();
        assert!(all.is_sorted_by(|a, b| a >= b), "{all:?}");
        assert!(all[0] > 5 && all[198] == 0, "{all:?}");
    }

    #[test]
    fn no_drafts_where_tokens_take_all_the_time() {
        let compute_bound = machine(0.0, 3.0);
        for acceptance in [0.3, 0.5, 0.7, 0.799] {
            assert_eq!(n_drafts(&compute_bound, 1, acceptance), 0, "{acceptance}");
            assert_eq!(n_drafts(&compute_bound, 16, acceptance), 0, "{acceptance}");
        }
    }

    #[test]
    fn no_drafts_before_a_step_was_timed() {
        assert_eq!(n_drafts(&StepTimeModel::default(), 1, 0.9), 0);
    }
}
