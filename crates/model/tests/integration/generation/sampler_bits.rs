//! The sampler compared with one that sorts the whole vocabulary and reads every logit: the same tokens and
//! the same bits of log-probabilities, whatever parts of the vocabulary it skips.

use std::cmp::Ordering;

use fastrand::Rng;
use throng_core::request::{SamplingParams, TokenId};
use throng_kernels::logits_reduce::{BLOCK, weight};
use throng_model::sampler::{Sampler, SamplingInput, philox};

fn by_rank(a: &(TokenId, f32), b: &(TokenId, f32)) -> Ordering {
    b.1.partial_cmp(&a.1).expect("numbers").then(a.0.cmp(&b.0))
}

/// The sum of a group's weights in the order of all sums over a vocabulary.
fn sum_of_block(block: &[f32], max: f32, temperature: f32) -> f64 {
    let weights: Vec<f32> = block.iter().map(|&logit| weight(logit, max, temperature)).collect();
    let (whole, rest) = weights.split_at(weights.len() / 8 * 8);
    let of_lane = |lane: usize| whole.iter().skip(lane).step_by(8).fold(0f32, |sum, weight| sum + weight);
    (0..8).fold(rest.iter().sum::<f32>().into(), |sum, lane| sum + f64::from(of_lane(lane)))
}

fn sums_of_blocks(logits: &[f32], max: f32, temperature: f32) -> Vec<f64> {
    logits.chunks(BLOCK).map(|block| sum_of_block(block, max, temperature)).collect()
}

/// The first token at which the running sum of weights passes `target`, else the last with any weight.
fn walk(weights: impl Iterator<Item = (TokenId, f64)>, target: f64) -> Option<TokenId> {
    let (mut sum, mut last) = (0.0, None);
    for (token, weight) in weights.filter(|(_, weight)| *weight > 0.0) {
        (sum, last) = (sum + weight, Some(token));
        if sum > target {
            break;
        }
    }
    last
}

fn plain_sample(logits: &[f32], params: &SamplingParams, uniform: f64) -> Option<TokenId> {
    let is_allowed =
        |token: &TokenId| params.allowed_token_ids.as_ref().is_none_or(|allowed| allowed.contains(token));
    let mut ranked: Vec<_> =
        (0..).zip(logits.iter().copied()).filter(|(token, _)| is_allowed(token)).collect();
    ranked.sort_by(by_rank);
    let &(first, max) = ranked.first()?;
    if max == f32::NEG_INFINITY || params.is_greedy() {
        return (max > f32::NEG_INFINITY).then_some(first);
    }
    let temperature = params.temperature;
    let weigh = |logit: f32| f64::from(weight(logit, max, temperature));
    let is_whole = params.allowed_token_ids.is_none() && params.top_k == 0 && params.min_p == 0.0;
    let sums = sums_of_blocks(logits, max, temperature);
    let of_vocabulary: f64 = sums.iter().sum();
    if is_whole && params.top_p >= 1.0 {
        let target = (uniform * of_vocabulary).min(of_vocabulary.next_down());
        let mut before = 0.0;
        let block_idx = sums.iter().position(|sum| {
            let is_here = before + sum > target;
            before += if is_here { 0.0 } else { *sum };
            is_here
        })?;
        let first = block_idx * BLOCK;
        let block = (first as TokenId..).zip(logits[first..].iter().take(BLOCK));
        return walk(block.map(|(token, &logit)| (token, weigh(logit))), target - before);
    }
    ranked.retain(|(_, logit)| params.min_p == 0.0 || weight(*logit, max, temperature) >= params.min_p);
    ranked.truncate(if params.top_k == 0 { usize::MAX } else { params.top_k as usize });
    if params.top_p < 1.0 {
        let of_ranked: f64 = ranked.iter().map(|(_, logit)| weigh(*logit)).sum();
        let target = f64::from(params.top_p) * if is_whole { of_vocabulary } else { of_ranked };
        let mut sum = 0.0;
        let reaches = |(_, logit): &(TokenId, f32)| {
            sum += weigh(*logit);
            sum >= target
        };
        let n_kept = ranked.iter().position(reaches).map_or(ranked.len(), |last| last + 1);
        ranked.truncate(n_kept);
    }
    let total: f64 = ranked.iter().map(|(_, logit)| weigh(*logit)).sum();
    walk(ranked.iter().map(|(token, logit)| (*token, weigh(*logit))), uniform * total)
}

fn pick<T: Clone>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.usize(..choices.len())].clone()
}

fn random_logits(rng: &mut Rng, n: usize) -> Vec<f32> {
    let spread = pick(rng, &[0.3, 1.0, 4.0, 30.0]);
    let is_rounded = rng.u8(..4) == 0;
    let mut draw = || (0..6).map(|_| rng.f32() - 0.5).sum::<f32>() * spread;
    let mut logits: Vec<f32> =
        (0..n).map(|_| draw()).map(|logit| if is_rounded { logit.round() } else { logit }).collect();
    let n_banned = pick(rng, &[0, 0, 1, n / 2, n]);
    (0..n_banned).for_each(|_| logits[rng.usize(..n)] = f32::NEG_INFINITY);
    logits
}

fn check_case(seed: u64, n: usize, sampler: &mut Sampler) {
    let mut rng = Rng::with_seed(seed);
    let logits = random_logits(&mut rng, n);
    let params = SamplingParams {
        temperature: pick(&mut rng, &[0.0, 1e-5, 0.05, 0.7, 1.0, 2.5]),
        top_k: pick(&mut rng, &[0, 0, 0, 1, 5, 40, 600, 1_000_000]),
        top_p: pick(&mut rng, &[1.0, 1.0, 0.1, 0.5, 0.95, 0.999_999]),
        min_p: pick(&mut rng, &[0.0, 0.0, 0.01, 0.3]),
        allowed_token_ids: (rng.u8(..6) == 0).then(|| (0..rng.u32(1..=n as u32)).collect()),
        logprobs: Some(0),
        seed,
        ..SamplingParams::default()
    };
    let place = SamplingInput {
        params: &params,
        mask: None,
        history: &[],
        n_prompt: 1,
        sequence_index: 0,
        position: 9,
    };
    let got = sampler.sample(&mut logits.clone(), &place).map(|chosen| chosen.chosen);
    let expected = plain_sample(&logits, &params, philox::uniform(seed, 0, 9));
    assert_eq!(got.ok().map(|chosen| chosen.token), expected, "check_case({seed}, {n}): {params:?}");
    let Ok(chosen) = got else { return };
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let log_sum = f64::from(max) + sums_of_blocks(&logits, max, 1.0).iter().sum::<f64>().ln();
    let logprob = (f64::from(logits[chosen.token as usize]) - log_sum) as f32;
    assert_eq!(chosen.logprob.to_bits(), logprob.to_bits(), "check_case({seed}, {n})");
}

#[test]
fn skipping_parts_of_the_vocabulary_changes_no_bits() {
    let mut sampler = Sampler::new();
    let sizes = [1, 5, 64, 129, 513, 700, 3_000];
    (0..6_000).for_each(|seed| check_case(seed, sizes[seed as usize % sizes.len()], &mut sampler));
    (0..60).for_each(|seed| check_case(seed, 40_003, &mut sampler));
    (0..6).for_each(|seed| check_case(seed, 151_936, &mut sampler));
}
