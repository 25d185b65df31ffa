//! The most likely tokens of a vocabulary, without sorting it. Equal logits are ordered by token id, so that no
//! result depends on how it was searched for. Refuses to know probabilities.

use std::cmp::Ordering;

use throng_core::request::TokenId;

use super::softmax::{self, BLOCK};

/// A token that may be chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub(super) logit: f32,
    pub(super) token: TokenId,
}

/// Most likely first, then smallest id.
pub(super) fn by_rank(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// The `n` most likely tokens of `logits` (none of them NaN), in order, into `top`.
pub(super) fn top_of_vocabulary(logits: &[f32], n: usize, top: &mut Vec<Candidate>) {
    top.clear();
    if n == 0 {
        return;
    }
    // Collects whatever beats the n-th best so far and cuts back to n when twice as many have gathered. After
    // the first blocks hardly any block has such a token, and its maximum tells that at once.
    let n_gathered = n.saturating_mul(2).max(BLOCK);
    let mut threshold = f32::NEG_INFINITY;
    for (block_idx, block) in logits.chunks(BLOCK).enumerate() {
        // A later token with the logit of the n-th best has a greater id and loses.
        if top.len() >= n && softmax::max(block) <= threshold {
            continue;
        }
        let first = (block_idx * BLOCK) as TokenId;
        for (token, &logit) in (first..).zip(block) {
            if logit > threshold || top.len() < n {
                // Adding 0 turns −0 into 0, which `total_cmp` would tell apart.
                top.push(Candidate { logit: logit + 0.0, token });
                if top.len() >= n_gathered {
                    keep_best(top, n);
                    threshold = top[n - 1].logit;
                }
            }
        }
    }
    keep_best(top, n);
    top.sort_unstable_by(by_rank);
}

/// Cuts `candidates` to the `n` first by rank; the last of them then stands at the end.
pub(super) fn keep_best(candidates: &mut Vec<Candidate>, n: usize) {
    if n > 0 && candidates.len() > n {
        candidates.select_nth_unstable_by(n - 1, by_rank);
        candidates.truncate(n);
    }
}

/// One more than the number of tokens with a greater logit.
pub(super) fn rank_of(logits: &[f32], logit: f32) -> u32 {
    1 + logits.iter().map(|&other| u32::from(other > logit)).sum::<u32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_equals_the_head_of_a_full_sort() {
        let mut random = fastrand::Rng::with_seed(11);
        let mut top = Vec::new();
        for _ in 0..300 {
            let n_tokens = random.usize(1..3000);
            // Few distinct values, so that ties are everywhere.
            let n_values = [3, 50, 1 << 20][random.usize(0..3)];
            let logits: Vec<f32> =
                (0..n_tokens).map(|_| random.i32(-n_values..n_values) as f32 / 8.0).collect();
            let mut sorted: Vec<_> =
                (0..).zip(&logits).map(|(token, &logit)| Candidate { logit, token }).collect();
            sorted.sort_by(|a, b| b.logit.partial_cmp(&a.logit).unwrap().then(a.token.cmp(&b.token)));
            for n in [0, 1, 2, 20, n_tokens / 2, n_tokens, n_tokens + 5] {
                top_of_vocabulary(&logits, n, &mut top);
                assert_eq!(top, sorted[..n.min(n_tokens)]);
            }
        }
    }
}
