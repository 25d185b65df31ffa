//! The most likely tokens of a vocabulary, without sorting it. Equal logits are ordered by token id, so that
//! no result depends on the search. Does not know probabilities.

use std::cmp::Ordering;

use throng_core::request::TokenId;

use super::survey::Row;

/// A token that may be chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Candidate {
    pub(super) logit: f32,
    pub(super) token: TokenId,
}

/// Most likely first, then smallest id.
pub(super) fn by_rank(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// Candidates, with the buffers for finding them, which are kept from token to token.
#[derive(Debug, Default)]
pub(super) struct Ranked {
    pub(super) candidates: Vec<Candidate>,
    bounds: Vec<f32>,
    spare: Vec<Candidate>,
}

/// Fewest candidates that are gathered before the worst of them are dropped.
const N_GATHERED: usize = 512;
/// Number of candidates from which on digit by digit sorts faster than by comparing.
const WORTH_DIGITS: usize = 1024;
const DIGIT_BITS: u32 = 11;
const N_DIGITS: usize = 1 << DIGIT_BITS;

impl Ranked {
    /// The `n` most likely tokens, in order.
    pub(super) fn take_top(&mut self, row: Row<'_>, n: usize) {
        self.candidates.clear();
        if n == 0 {
            return;
        }
        let n_gathered = n.saturating_mul(2).max(N_GATHERED);
        // As many groups as tokens are wanted reach it, so at least as many tokens do.
        let floor = self.nth_largest(row.maxima, n).unwrap_or(f32::NEG_INFINITY);
        // Once the worst were dropped: a later token with the logit of the n-th best has a greater id and loses.
        let mut beaten = None;
        for (first, group) in row.groups_reaching(floor) {
            match beaten {
                None => self.gather(first, group, |logit| logit >= floor),
                Some(bound) => self.gather(first, group, |logit| logit > bound),
            }
            if self.candidates.len() >= n_gathered {
                self.keep_best(n);
                beaten = Some(self.candidates[n - 1].logit);
            }
        }
        self.keep_best(n);
        self.candidates.sort_unstable_by(by_rank);
    }

    /// All tokens with a logit of at least `floor`, in order of id.
    pub(super) fn take_reaching(&mut self, row: Row<'_>, floor: f32) {
        self.candidates.clear();
        for (first, group) in row.groups_reaching(floor) {
            self.gather(first, group, |logit| logit >= floor);
        }
    }

    /// Cuts the candidates to the `n` first by rank; the last of them then stands at the end.
    pub(super) fn keep_best(&mut self, n: usize) {
        if n > 0 && self.candidates.len() > n {
            self.candidates.select_nth_unstable_by(n - 1, by_rank);
            self.candidates.truncate(n);
        }
    }

    /// Sorts candidates in order of id by rank.
    pub(super) fn sort_from_id_order(&mut self) {
        if self.candidates.len() < WORTH_DIGITS {
            return self.candidates.sort_unstable_by(by_rank);
        }
        self.spare.resize(self.candidates.len(), Candidate::default());
        for shift in (0..u32::BITS).step_by(DIGIT_BITS as usize) {
            let digit = |candidate: &Candidate| (rank_key(candidate.logit) >> shift) as usize % N_DIGITS;
            let mut starts = [0u32; N_DIGITS];
            self.candidates.iter().for_each(|candidate| starts[digit(candidate)] += 1);
            let mut sum = 0;
            starts.iter_mut().for_each(|start| sum += std::mem::replace(start, sum));
            for candidate in &self.candidates {
                let start = &mut starts[digit(candidate)];
                self.spare[*start as usize] = *candidate;
                *start += 1;
            }
            std::mem::swap(&mut self.candidates, &mut self.spare);
        }
    }

    /// Adds the wanted tokens of a group. Writes all and keeps the wanted ones: no branch to mispredict.
    fn gather(&mut self, first: TokenId, group: &[f32], is_wanted: impl Fn(f32) -> bool) {
        let mut n = self.candidates.len();
        self.candidates.resize(n + group.len(), Candidate::default());
        for (token, &logit) in (first..).zip(group) {
            // Adding 0 turns −0 into 0, which `total_cmp` would tell apart.
            self.candidates[n] = Candidate { logit: logit + 0.0, token };
            n += usize::from(is_wanted(logit));
        }
        self.candidates.truncate(n);
    }

    fn nth_largest(&mut self, maxima: &[f32], n: usize) -> Option<f32> {
        if n > maxima.len() {
            return None;
        }
        self.bounds.clear();
        self.bounds.extend_from_slice(maxima);
        Some(*self.bounds.select_nth_unstable_by(n - 1, |a, b| b.total_cmp(a)).1)
    }
}

/// Orders as [`f32::total_cmp`] does, the greatest first.
fn rank_key(logit: f32) -> u32 {
    let bits = logit.to_bits();
    let is_negative = bits >> 31 == 1;
    if is_negative { bits } else { !bits & 0x7fff_ffff }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::survey::Survey;

    #[test]
    fn top_equals_the_head_of_a_full_sort() {
        let mut random = fastrand::Rng::with_seed(11);
        let (mut ranked, mut survey) = (Ranked::default(), Survey::default());
        for _ in 0..300 {
            let n_tokens = random.usize(1..3000);
            // Few distinct values, so that ties are everywhere.
            let n_values = [3, 50, 1 << 20][random.usize(0..3)];
            let mut logits: Vec<f32> =
                (0..n_tokens).map(|_| random.i32(-n_values..n_values) as f32 / 8.0).collect();
            let n_banned = random.usize(0..n_tokens);
            (0..n_banned).for_each(|_| logits[random.usize(..n_tokens)] = f32::NEG_INFINITY);
            let mut sorted: Vec<_> =
                (0..).zip(&logits).map(|(token, &logit)| Candidate { logit, token }).collect();
            sorted.sort_by(|a, b| b.logit.partial_cmp(&a.logit).unwrap().then(a.token.cmp(&b.token)));
            let row = survey.read(&logits).unwrap();
            for n in [0, 1, 2, 20, n_tokens / 2, n_tokens, n_tokens + 5] {
                ranked.take_top(row, n);
                assert_eq!(ranked.candidates, sorted[..n.min(n_tokens)]);
            }
            for floor in [f32::NEG_INFINITY, -1.0, 0.0, row.max] {
                ranked.take_reaching(row, floor);
                ranked.sort_from_id_order();
                let n_reaching = sorted.partition_point(|candidate| candidate.logit >= floor);
                assert_eq!(ranked.candidates, sorted[..n_reaching]);
            }
            let logit = logits[random.usize(..n_tokens)];
            assert_eq!(row.rank_of(logit) as usize, 1 + sorted.partition_point(|other| other.logit > logit));
            assert_eq!(row.first_of_largest(), Some(sorted[0].token));
        }
    }
}
