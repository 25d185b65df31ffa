//! Expected cost and gain of drafts, in time. Does not know their tokens.

use crate::scheduling::scheduler::step_time::{StepShape, StepTimeModel};
use crate::scheduling::sequence::{Running, Sequence};

/// Ratio of expected gain to expected cost from which a draft is computed, because the estimates of
/// acceptance and time are not exact.
const MARGIN: f64 = 1.25;

/// The step without chunks and drafts: each sampling sequence computes one token. Gives the cost of a token
/// that is not drafted; chunks are left out, because they are computed in any case.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Undrafted {
    shape: StepShape,
    /// Number of output tokens that the step settles.
    n_settled: usize,
}

impl Undrafted {
    pub(super) fn plus(self, sequence: &Sequence<Running>) -> Self {
        let shape = self.shape.plus(StepShape::of_sequence(sequence.tokens().len() - 1, 1));
        Self { shape, n_settled: self.n_settled + 1 }
    }

    /// The price of drafts in this step; `None` before a step was timed.
    pub(super) fn price<'a>(
        &self,
        step_time: &'a StepTimeModel,
        draft_time: &'a StepTimeModel,
    ) -> Option<DraftPrice<'a>> {
        let ms = step_time.predict_ms(self.shape)?;
        let ms_of_token = ms / self.n_settled as f64;
        Some(DraftPrice { shape: self.shape, ms, ms_of_token, step_time, draft_time })
    }
}

/// The price of drafts in a step. Draft `j` of a sequence is worth `acceptance^j` tokens; a draft must yield
/// more tokens for its time than the step yields in that time without drafts.
#[derive(Debug, Clone, Copy)]
pub(super) struct DraftPrice<'a> {
    shape: StepShape,
    /// Duration in ms of the step without drafts.
    ms: f64,
    /// Time in ms per token of the step without drafts.
    ms_of_token: f64,
    step_time: &'a StepTimeModel,
    /// Durations of passes of the draft model.
    draft_time: &'a StepTimeModel,
}

impl DraftPrice<'_> {
    /// Number of drafts at the positions from `start` on, at most `most`, that are worth verifying if each
    /// is accepted with probability `acceptance` after all before it.
    pub(super) fn n_worthwhile(&self, acceptance: f64, start: usize, most: usize) -> usize {
        self.n_worth(acceptance, self.verifying_ms(start), most)
    }

    /// Number of such drafts if the draft model makes them, in passes that run for other sequences anyway.
    pub(super) fn n_worth_making(&self, acceptance: f64, start: usize, most: usize) -> usize {
        let one = StepShape::of_sequence(start, 1);
        let (Some(alone), Some(beside)) =
            (self.draft_time.predict_ms(one), self.draft_time.predict_ms(one.plus(one)))
        else {
            // One pass tells how long it takes.
            return self.n_worthwhile(acceptance, start, most.min(1));
        };
        self.n_worth(acceptance, self.verifying_ms(start) + (beside - alone), most)
    }

    /// Whether a pass of the draft model is worth its time that makes, for each of `sequences`, draft
    /// number `depth` at `start + depth`, accepted with probability `acceptance^depth`. Each sequence is
    /// given as acceptance and start.
    pub(super) fn is_pass_worthwhile(
        &self,
        depth: usize,
        sequences: impl Iterator<Item = (f64, usize)>,
    ) -> bool {
        let (mut shape, mut verifying_ms, mut n_gained) = (StepShape::default(), 0.0, 0.0);
        for (acceptance, start) in sequences {
            shape = shape.plus(StepShape::of_sequence(start + depth, 1));
            verifying_ms += self.verifying_ms(start + depth);
            n_gained += acceptance.powi(depth as i32);
        }
        let making_ms = self.draft_time.predict_ms(shape).unwrap_or(0.0);
        shape.n_tokens > 0 && n_gained * self.ms_of_token > MARGIN * (verifying_ms + making_ms)
    }

    fn n_worth(&self, acceptance: f64, cost_ms: f64, most: usize) -> usize {
        let least_worth = MARGIN * cost_ms / self.ms_of_token;
        let worth = std::iter::successors(Some(acceptance), |worth| Some(worth * acceptance));
        worth.take(most).take_while(|&worth| worth > least_worth).count()
    }

    /// Time in ms that one more token at `position` adds to the step.
    fn verifying_ms(&self, position: usize) -> f64 {
        let with_one_more = self.shape.plus(StepShape::of_sequence(position, 1));
        self.step_time.predict_ms(with_one_more).unwrap_or(self.ms) - self.ms
    }
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

    fn step(n_users: usize) -> Undrafted {
        let shape = StepShape { n_tokens: n_users, n_attended: n_users };
        Undrafted { shape, n_settled: n_users }
    }

    /// Drafts of each of `n_users` whose steps give a token each.
    fn n_drafts(model: &StepTimeModel, n_users: usize, acceptance: f64) -> usize {
        let untimed = StepTimeModel::default();
        step(n_users).price(model, &untimed).map_or(0, |price| price.n_worthwhile(acceptance, 1, 16))
    }

    /// Drafts of a draft model for each sequence, as long as a pass for all is worth its time.
    fn n_made(model: &StepTimeModel, of_draft: &StepTimeModel, n_users: usize, acceptance: f64) -> usize {
        let price = step(n_users).price(model, of_draft).expect("it was timed");
        let each = price.n_worth_making(acceptance, 1, 16);
        let is_worthwhile =
            |&depth: &usize| price.is_pass_worthwhile(depth, (0..n_users).map(|_| (acceptance, 1)));
        (1..=each).take_while(is_worthwhile).count()
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
        let (machine, of_draft) = (machine(20.0, 1.0), machine(2.0, 0.1));
        let looked_up: Vec<usize> = (1..200).map(|n_users| n_drafts(&machine, n_users, 0.7)).collect();
        let made: Vec<usize> = (1..200).map(|n_users| n_made(&machine, &of_draft, n_users, 0.7)).collect();
        for all in [looked_up, made] {
            assert!(all.is_sorted_by(|a, b| a >= b), "{all:?}");
            assert!(all[0] > 2 && all[198] == 0, "{all:?}");
        }
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

    #[test]
    fn a_dear_draft_model_makes_fewer_drafts() {
        let model = machine(20.0, 1.0);
        let of = |share: f64, acceptance| n_made(&model, &machine(20.0 * share, share), 1, acceptance);
        let all: Vec<usize> = [0.01, 0.1, 0.3, 1.0].map(|share| of(share, 0.8)).into();
        assert!(all.is_sorted_by(|a, b| a >= b) && all[0] > 5 && all[3] == 0, "{all:?}");
        assert_eq!(of(1.0, 0.999), 0, "a draft model as slow as the model never pays");
    }

    #[test]
    fn one_draft_tells_how_long_the_draft_model_takes() {
        assert_eq!(n_made(&machine(20.0, 1.0), &StepTimeModel::default(), 1, 0.9), 1);
    }
}
