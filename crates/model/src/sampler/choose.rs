//! Chooses one token from logits to which all rules were applied: `temperature`, `min_p`, `top_k`, `top_p`,
//! in this order, then one draw. Does not know where the random number comes from.

use throng_core::request::{SamplingParams, TokenId};
use throng_core::scheduling::batch::SequenceError;
use throng_kernels::logits_reduce::{BLOCK, weight};

use super::ranking::{Candidate, Ranked, by_rank};
use super::survey::Row;

/// Buffers that are reused from token to token.
#[derive(Debug, Default)]
pub(super) struct Chooser {
    pub(super) ranked: Ranked,
    /// Weights of the candidates, in their order.
    weights: Vec<f32>,
    block_sums: Vec<f64>,
    class_counts: Vec<u32>,
}

/// Numbers of tokens that `top_p` examines first and second.
const NUCLEI: [usize; 2] = [64, 1024];
/// Classes of logits: eighths of the temperature below the largest. The last holds all without weight.
const N_CLASSES: usize = 8 * 88;

impl Chooser {
    /// Chooses from the whole vocabulary by the random number `uniform` in [0, 1); greedy parameters do not
    /// use it.
    pub(super) fn choose(
        &mut self,
        row: Row<'_>,
        params: &SamplingParams,
        uniform: f64,
    ) -> Result<TokenId, SequenceError> {
        if row.max == f32::NEG_INFINITY {
            return Err(SequenceError::InvalidLogits);
        }
        if params.is_greedy() {
            return row.first_of_largest().ok_or(SequenceError::InvalidLogits);
        }
        let (max, temperature) = (row.max, params.temperature);
        if params.top_k == 0 && params.min_p == 0.0 {
            let total = self.sum_of_weights(row, temperature);
            if params.top_p >= 1.0 {
                // Below the total even where the product rounds up to it.
                let target = (uniform * total).min(total.next_down());
                return draw_from_blocks(row.logits, &self.block_sums, max, temperature, target);
            }
            let kept = self.nucleus_of_vocabulary(row, temperature, f64::from(params.top_p) * total);
            return self.draw(kept, uniform);
        }
        self.filter(row, params);
        self.choose_by_rank(max, params, uniform)
    }

    /// Chooses among the `allowed` tokens only.
    pub(super) fn choose_allowed(
        &mut self,
        logits: &[f32],
        allowed: &[TokenId],
        params: &SamplingParams,
        uniform: f64,
    ) -> Result<TokenId, SequenceError> {
        let max = self.gather_allowed(logits, allowed)?;
        if max == f32::NEG_INFINITY {
            return Err(SequenceError::InvalidLogits);
        }
        let candidates = &mut self.ranked.candidates;
        if params.is_greedy() {
            let best = candidates.iter().min_by(|a, b| by_rank(a, b));
            return best.map(|candidate| candidate.token).ok_or(SequenceError::InvalidLogits);
        }
        candidates.retain(|candidate| is_likely(candidate.logit, max, params));
        self.ranked.keep_best(params.top_k as usize);
        self.ranked.candidates.sort_unstable_by(by_rank);
        self.choose_by_rank(max, params, uniform)
    }

    /// Chooses among the candidates, which are in order of rank.
    fn choose_by_rank(
        &mut self,
        max: f32,
        params: &SamplingParams,
        uniform: f64,
    ) -> Result<TokenId, SequenceError> {
        self.weigh(max, params.temperature);
        let kept = match params.top_p < 1.0 {
            true => {
                let total: f64 = self.weights.iter().map(|&weight| f64::from(weight)).sum();
                self.nucleus(f64::from(params.top_p) * total).unwrap_or(self.weights.len())
            }
            false => self.weights.len(),
        };
        self.draw(kept, uniform)
    }

    /// Makes the allowed tokens the candidates and returns their largest logit.
    fn gather_allowed(&mut self, logits: &[f32], allowed: &[TokenId]) -> Result<f32, SequenceError> {
        self.ranked.candidates.clear();
        let mut max = f32::NEG_INFINITY;
        for &token in allowed {
            let Some(&logit) = logits.get(token as usize) else { continue };
            if logit.is_nan() || logit == f32::INFINITY {
                return Err(SequenceError::InvalidLogits);
            }
            max = max.max(logit);
            self.ranked.candidates.push(Candidate { logit: logit + 0.0, token });
        }
        Ok(max)
    }

    /// Keeps as candidates, in order, the tokens that `min_p` and `top_k` keep.
    fn filter(&mut self, row: Row<'_>, params: &SamplingParams) {
        let n_kept = params.top_k as usize;
        if n_kept > 0 && n_kept < row.logits.len() {
            self.ranked.take_top(row, n_kept);
            let candidates = &mut self.ranked.candidates;
            let n_likely = candidates.partition_point(|c| is_likely(c.logit, row.max, params));
            return candidates.truncate(n_likely);
        }
        // Most tokens are sorted out by a comparison, a little below where their weight would do it.
        let floor = match params.min_p {
            0.0 => f32::NEG_INFINITY,
            min_p => row.max + params.temperature * (min_p.ln() - 0.01),
        };
        self.ranked.take_reaching(row, floor);
        self.ranked.candidates.retain(|candidate| is_likely(candidate.logit, row.max, params));
        self.ranked.sort_from_id_order();
    }

    /// The weights of the whole vocabulary, summed block by block.
    pub(super) fn sum_of_weights(&mut self, row: Row<'_>, temperature: f32) -> f64 {
        self.block_sums.resize(row.logits.len().div_ceil(BLOCK), 0.0);
        row.walker.sums(row.logits, row.maxima, row.max, temperature, &mut self.block_sums);
        self.block_sums.iter().sum()
    }

    /// Makes the most likely tokens the candidates, enough for their weights to reach `target`, and returns
    /// the size of the nucleus.
    fn nucleus_of_vocabulary(&mut self, row: Row<'_>, temperature: f32, target: f64) -> usize {
        for n in NUCLEI {
            self.ranked.take_top(row, n);
            self.weigh(row.max, temperature);
            if let Some(kept) = self.nucleus(target) {
                return kept;
            }
        }
        // A flat distribution: how many logits are how far down tells how far the nucleus can reach at most, so
        // that no more than it and a little need sorting.
        let step = temperature / 8.0;
        self.class_counts.clear();
        self.class_counts.resize(N_CLASSES, 0);
        row.walker.count_below(row.logits, row.max, step, &mut self.class_counts);
        let mut sum = 0.0;
        let reaches = |(class, &n): (usize, &u32)| {
            sum += f64::from(n) * (-(class as f64 + 1.0) / 8.0).exp();
            sum >= target
        };
        let mut last_class = self.class_counts.iter().enumerate().position(reaches).unwrap_or(N_CLASSES);
        loop {
            let floor = match last_class < N_CLASSES - 1 {
                true => row.max - step * (last_class as f32 + 1.0),
                false => f32::NEG_INFINITY,
            };
            self.ranked.take_reaching(row, floor);
            self.ranked.sort_from_id_order();
            self.weigh(row.max, temperature);
            // Sums in another order are rounded otherwise; at the very end all are kept.
            match self.nucleus(target) {
                Some(kept) => return kept,
                None if floor == f32::NEG_INFINITY => return self.weights.len(),
                None => last_class += 1,
            }
        }
    }

    /// The weights of the candidates.
    fn weigh(&mut self, max: f32, temperature: f32) {
        self.weights.clear();
        let weights = self.ranked.candidates.iter().map(|c| weight(c.logit, max, temperature));
        self.weights.extend(weights);
    }

    /// Number of first candidates whose weights reach `target`; `None` when all do not.
    fn nucleus(&self, target: f64) -> Option<usize> {
        let mut sum = 0.0;
        let last = self.weights.iter().position(|&weight| {
            sum += f64::from(weight);
            sum >= target
        });
        last.map(|last| last + 1)
    }

    /// Draws from the first `kept` candidates.
    fn draw(&self, kept: usize, uniform: f64) -> Result<TokenId, SequenceError> {
        let weights = self.weights[..kept].iter().map(|&weight| f64::from(weight));
        let total: f64 = weights.clone().sum();
        let tokens = self.ranked.candidates.iter().map(|candidate| candidate.token);
        pick(tokens.zip(weights), uniform * total).or_else(|last| last.ok_or(SequenceError::InvalidLogits))
    }
}

fn is_likely(logit: f32, max: f32, params: &SamplingParams) -> bool {
    params.min_p == 0.0 || weight(logit, max, params.temperature) >= params.min_p
}

/// Draws from the whole vocabulary in order of token id; the sums of blocks determine the block.
fn draw_from_blocks(
    logits: &[f32],
    block_sums: &[f64],
    max: f32,
    temperature: f32,
    target: f64,
) -> Result<TokenId, SequenceError> {
    let mut before = 0.0;
    for (block_idx, (block, sum)) in logits.chunks(BLOCK).zip(block_sums).enumerate() {
        if before + sum > target {
            let first = (block_idx * BLOCK) as TokenId;
            let weights = (first..)
                .zip(block)
                .map(|(token, &logit)| (token, f64::from(weight(logit, max, temperature))));
            // The block's sum is rounded otherwise than that of `pick`: where it promised a little more, the
            // block's last token is meant.
            return pick(weights, target - before).or_else(|last| last.ok_or(SequenceError::InvalidLogits));
        }
        before += sum;
    }
    Err(SequenceError::InvalidLogits)
}

/// The first token at which the running sum passes `target`; else the last one with any weight.
fn pick(weights: impl Iterator<Item = (TokenId, f64)>, target: f64) -> Result<TokenId, Option<TokenId>> {
    let (mut sum, mut last) = (0.0, None);
    for (token, weight) in weights {
        sum += weight;
        if weight > 0.0 {
            if sum > target {
                return Ok(token);
            }
            last = Some(token);
        }
    }
    Err(last)
}
