//! `top_p` over a flat distribution, whose nucleus is a large part of the vocabulary. Logits are put into classes by their distance
//! from the largest; sums of weights tell in which class the nucleus ends and in which the drawn token is, and only those two are
//! sorted.

use throng_core::batch::SequenceError;
use throng_core::request::TokenId;
use throng_kernels::logits_reduce::weight;

use super::super::ranking::{Candidate, by_rank};
use super::super::survey::Row;
use super::{Chooser, pick};

/// Classes of logits: eighths of the temperature below the largest. The last holds all without weight.
const N_CLASSES: usize = 8 * 88;

/// Buffers that are reused from token to token.
#[derive(Debug, Default)]
pub(super) struct Classes {
    counts: Vec<u32>,
    sums: Vec<f64>,
    /// Of one class, in order of rank.
    members: Vec<(Candidate, f64)>,
}

/// A distribution whose most likely tokens, enough for their weights to reach `target`, are the nucleus.
#[derive(Clone, Copy)]
struct Flat {
    max: f32,
    temperature: f32,
    target: f64,
}

impl Flat {
    /// The width of a class.
    fn step(&self) -> f32 {
        self.temperature / 8.0
    }

    fn class_of(&self, logit: f32) -> usize {
        (((self.max - logit) / self.step()) as usize).min(N_CLASSES - 1)
    }

    fn weight(&self, logit: f32) -> f64 {
        f64::from(weight(logit, self.max, self.temperature))
    }
}

impl Chooser {
    /// Draws from the nucleus by the random number `uniform` in [0, 1).
    pub(super) fn choose_from_flat(
        &mut self,
        row: Row<'_>,
        temperature: f32,
        target: f64,
        uniform: f64,
    ) -> Result<TokenId, SequenceError> {
        let flat = Flat { max: row.max, temperature, target };
        // How many logits are how far down tells how far the nucleus can reach at most.
        let counts = &mut self.classes.counts;
        counts.clear();
        counts.resize(N_CLASSES, 0);
        row.walker.count_below(row.logits, row.max, flat.step(), counts);
        let mut sum = 0.0;
        let reaches = |(class, &n): (usize, &u32)| {
            sum += f64::from(n) * (-(class as f64 + 1.0) / 8.0).exp();
            sum >= target
        };
        let mut last = counts.iter().enumerate().position(reaches).unwrap_or(N_CLASSES);
        loop {
            let has_all = last >= N_CLASSES - 1;
            let floor = if has_all { f32::NEG_INFINITY } else { row.max - flat.step() * (last as f32 + 1.0) };
            self.ranked.take_reaching(row, floor);
            self.sum_classes(&flat);
            match self.last_class(&flat) {
                Some(end) => return self.draw_from_classes(&flat, end, uniform),
                // Sums in another order are rounded otherwise; at the very end all are kept.
                None if has_all => {
                    let end = self.classes.sums.iter().rposition(|&of_class| of_class > 0.0).unwrap_or(0);
                    return self.draw_from_classes(&flat, end, uniform);
                }
                None => last += 1,
            }
        }
    }

    fn sum_classes(&mut self, flat: &Flat) {
        let sums = &mut self.classes.sums;
        sums.clear();
        sums.resize(N_CLASSES, 0.0);
        for candidate in &self.ranked.candidates {
            sums[flat.class_of(candidate.logit)] += flat.weight(candidate.logit);
        }
    }

    /// The class in which the nucleus ends; `None` where the candidates do not reach so far.
    fn last_class(&self, flat: &Flat) -> Option<usize> {
        let mut sum = 0.0;
        self.classes.sums.iter().position(|of_class| {
            sum += of_class;
            sum >= flat.target
        })
    }

    /// Draws from the candidates down to the target in class `end`.
    fn draw_from_classes(&mut self, flat: &Flat, end: usize, uniform: f64) -> Result<TokenId, SequenceError> {
        let before: f64 = self.classes.sums[..end].iter().sum();
        self.sort_class(flat, end);
        let mut total = before;
        let reaches = |&(_, weight): &(Candidate, f64)| {
            total += weight;
            total >= flat.target
        };
        let n_kept =
            self.classes.members.iter().position(reaches).map_or(self.classes.members.len(), |last| last + 1);
        self.classes.members.truncate(n_kept);
        let point = uniform * total;
        let mut sum = 0.0;
        for class in 0..end {
            let of_class = self.classes.sums[class];
            if sum + of_class > point {
                self.sort_class(flat, class);
                break;
            }
            sum += of_class;
        }
        // A class's sum is rounded otherwise than that of `pick`: where it promised a little more, its last token is meant.
        let members = self.classes.members.iter().map(|(candidate, weight)| (candidate.token, *weight));
        pick(members, point - sum).or_else(|last| last.ok_or(SequenceError::InvalidLogits))
    }

    /// Makes the candidates of a class, in order of rank, its members.
    fn sort_class(&mut self, flat: &Flat, class: usize) {
        let members = &mut self.classes.members;
        members.clear();
        let of_class =
            self.ranked.candidates.iter().filter(|candidate| flat.class_of(candidate.logit) == class);
        members.extend(of_class.map(|&candidate| (candidate, flat.weight(candidate.logit))));
        members.sort_unstable_by(|(a, _), (b, _)| by_rank(a, b));
    }
}
