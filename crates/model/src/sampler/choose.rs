//! Chooses one token from logits to which all rules were applied: `temperature`, `min_p`, `top_k`, `top_p`, in
//! this order, then one draw. Refuses to know where the random number comes from.

use throng_core::batch::RowError;
use throng_core::request::{SamplingParams, TokenId};

use super::ranking::{Candidate, by_rank, keep_best, top_of_vocabulary};
use super::softmax::{self, BLOCK, weight};

/// Buffers that are reused from token to token.
#[derive(Debug, Default)]
pub(super) struct Chooser {
    candidates: Vec<Candidate>,
    block_sums: Vec<f64>,
    class_weights: Vec<f64>,
}

/// How many tokens `top_p` looks at first, and then.
const NUCLEI: [usize; 2] = [64, 1024];
/// Classes of logits, the last of which holds all without weight.
const N_CLASSES: usize = 8 * 88;

impl Chooser {
    /// Chooses by the random number `uniform` in [0, 1); greedy parameters do not use it.
    pub(super) fn choose(
        &mut self,
        logits: &[f32],
        params: &SamplingParams,
        uniform: f64,
    ) -> Result<TokenId, RowError> {
        let max = match &params.allowed_token_ids {
            Some(allowed) => self.gather_allowed(logits, allowed)?,
            None => softmax::checked_max(logits).ok_or(RowError::InvalidLogits)?,
        };
        if max == f32::NEG_INFINITY {
            return Err(RowError::InvalidLogits);
        }
        let is_whole_vocabulary = params.allowed_token_ids.is_none();
        if params.is_greedy() {
            return Ok(match is_whole_vocabulary {
                true => first_of(logits, max),
                false => {
                    self.candidates.iter().min_by(|a, b| by_rank(a, b)).expect("max is one of them").token
                }
            });
        }
        let temperature = params.temperature;
        if is_whole_vocabulary && params.top_k == 0 && params.min_p == 0.0 {
            let total = self.sum_blocks(logits, max, temperature);
            if params.top_p >= 1.0 {
                // Below the total even where the product rounds up to it.
                let target = (uniform * total).min(total.next_down());
                return draw_from_blocks(logits, &self.block_sums, max, temperature, target);
            }
            let kept = self.nucleus_of_vocabulary(logits, max, temperature, f64::from(params.top_p) * total);
            return draw(&self.candidates[..kept], max, temperature, uniform);
        }
        self.filter(logits, max, params);
        let kept = match params.top_p < 1.0 {
            true => {
                let total: f64 =
                    self.candidates.iter().map(|c| f64::from(weight(c.logit, max, temperature))).sum();
                let target = f64::from(params.top_p) * total;
                nucleus(&self.candidates, max, temperature, target).unwrap_or(self.candidates.len())
            }
            false => self.candidates.len(),
        };
        draw(&self.candidates[..kept], max, temperature, uniform)
    }

    /// Makes the allowed tokens the candidates and gives their largest logit.
    fn gather_allowed(&mut self, logits: &[f32], allowed: &[TokenId]) -> Result<f32, RowError> {
        self.candidates.clear();
        let mut max = f32::NEG_INFINITY;
        for &token in allowed {
            let Some(&logit) = logits.get(token as usize) else { continue };
            if logit.is_nan() || logit == f32::INFINITY {
                return Err(RowError::InvalidLogits);
            }
            max = max.max(logit);
            self.candidates.push(Candidate { logit: logit + 0.0, token });
        }
        Ok(max)
    }

    /// Leaves as candidates, in order, what `min_p` and `top_k` keep.
    fn filter(&mut self, logits: &[f32], max: f32, params: &SamplingParams) {
        let is_likely =
            |logit: f32| params.min_p == 0.0 || weight(logit, max, params.temperature) >= params.min_p;
        let n_kept = if params.top_k == 0 { usize::MAX } else { params.top_k as usize };
        if params.allowed_token_ids.is_some() {
            self.candidates.retain(|candidate| is_likely(candidate.logit));
        } else if n_kept < logits.len() {
            top_of_vocabulary(logits, n_kept, &mut self.candidates);
            let n_likely = self.candidates.partition_point(|candidate| is_likely(candidate.logit));
            self.candidates.truncate(n_likely);
            return;
        } else {
            self.candidates.clear();
            // Most tokens are sorted out by a comparison, a little below where their weight would do it.
            let floor = match params.min_p {
                0.0 => f32::NEG_INFINITY,
                min_p => max + params.temperature * (min_p.ln() - 0.01),
            };
            let all = (0..).zip(logits).filter(|(_, logit)| **logit >= floor && is_likely(**logit));
            self.candidates.extend(all.map(|(token, &logit)| Candidate { logit: logit + 0.0, token }));
        }
        keep_best(&mut self.candidates, n_kept);
        self.candidates.sort_unstable_by(by_rank);
    }

    /// The weights of the whole vocabulary, summed block by block.
    fn sum_blocks(&mut self, logits: &[f32], max: f32, temperature: f32) -> f64 {
        self.block_sums.clear();
        let sums = logits.chunks(BLOCK).map(|block| softmax::sum_of_block(block, max, temperature));
        self.block_sums.extend(sums);
        self.block_sums.iter().sum()
    }

    /// Makes the most likely tokens the candidates, enough for their weights to reach `target`, and says how many
    /// of them it takes.
    fn nucleus_of_vocabulary(&mut self, logits: &[f32], max: f32, temperature: f32, target: f64) -> usize {
        for n in NUCLEI {
            top_of_vocabulary(logits, n, &mut self.candidates);
            if let Some(kept) = nucleus(&self.candidates, max, temperature, target) {
                return kept;
            }
        }
        // A flat distribution: weights by classes of logits tell how far down the nucleus reaches, so that no
        // more than it and one class need sorting.
        self.class_weights.clear();
        self.class_weights.resize(N_CLASSES, 0.0);
        for &logit in logits {
            self.class_weights[class_of(logit, max, temperature)] +=
                f64::from(weight(logit, max, temperature));
        }
        let mut sum = 0.0;
        let reaches = |weight: &f64| {
            sum += weight;
            sum >= target
        };
        let mut last_class = self.class_weights.iter().position(reaches).unwrap_or(N_CLASSES - 1);
        loop {
            self.candidates.clear();
            let likely = (0..).zip(logits).filter(|(_, l)| class_of(**l, max, temperature) <= last_class);
            self.candidates.extend(likely.map(|(token, &logit)| Candidate { logit: logit + 0.0, token }));
            self.candidates.sort_unstable_by(by_rank);
            if let Some(kept) = nucleus(&self.candidates, max, temperature, target) {
                return kept;
            }
            // Sums in another order are rounded otherwise; at the very end all are kept.
            if last_class == N_CLASSES - 1 {
                return self.candidates.len();
            }
            last_class += 1;
        }
    }
}

/// The class of a logit: how many eighths of the temperature it is below the largest.
fn class_of(logit: f32, max: f32, temperature: f32) -> usize {
    let below = (max - logit) / temperature * 8.0;
    (below as usize).min(N_CLASSES - 1)
}

fn first_of(logits: &[f32], max: f32) -> TokenId {
    logits.iter().position(|&logit| logit == max).expect("max is one of them") as TokenId
}

/// How many of the first `candidates` it takes for their weights to reach `target`; `None` when all do not.
fn nucleus(candidates: &[Candidate], max: f32, temperature: f32, target: f64) -> Option<usize> {
    let mut sum = 0.0;
    let last = candidates.iter().position(|candidate| {
        sum += f64::from(weight(candidate.logit, max, temperature));
        sum >= target
    });
    last.map(|last| last + 1)
}

fn draw(candidates: &[Candidate], max: f32, temperature: f32, uniform: f64) -> Result<TokenId, RowError> {
    let weight_of = |candidate: &Candidate| f64::from(weight(candidate.logit, max, temperature));
    let total: f64 = candidates.iter().map(weight_of).sum();
    let weights = candidates.iter().map(|candidate| (candidate.token, weight_of(candidate)));
    pick(weights, uniform * total).or_else(|last| last.ok_or(RowError::InvalidLogits))
}

/// Draws from the whole vocabulary in order of token id; the sums of blocks tell in which block.
fn draw_from_blocks(
    logits: &[f32],
    block_sums: &[f64],
    max: f32,
    temperature: f32,
    target: f64,
) -> Result<TokenId, RowError> {
    let mut before = 0.0;
    for (block_idx, (block, sum)) in logits.chunks(BLOCK).zip(block_sums).enumerate() {
        if before + sum > target {
            let first = (block_idx * BLOCK) as TokenId;
            let weights = (first..)
                .zip(block)
                .map(|(token, &logit)| (token, f64::from(weight(logit, max, temperature))));
            // The block's sum is rounded otherwise than that of `pick`: where it promised a little more, the
            // block's last token is meant.
            return pick(weights, target - before).or_else(|last| last.ok_or(RowError::InvalidLogits));
        }
        before += sum;
    }
    Err(RowError::InvalidLogits)
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
