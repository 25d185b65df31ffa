//! The sampler compared with a naive one in f64, and its draws with the expected distribution.

use std::collections::HashMap;

use fastrand::Rng;
use throng_core::request::{SamplingParams, TokenId};
use throng_core::scheduling::batch::{ChosenToken, SequenceError};
use throng_model::sampler::{Sampler, SamplingInput, philox};

/// Reference: every token that may be chosen with its probability, most likely first (ties by id).
fn reference(logits: &[f32], input: &SamplingInput<'_>) -> Vec<(TokenId, f64)> {
    let params = input.params;
    let mut logits: Vec<f64> = logits.iter().map(|&logit| logit.into()).collect();
    let output = &input.history[(input.n_prompt as usize).min(input.history.len())..];
    if let Some(allowed) = &params.allowed_token_ids {
        for (token, logit) in (0..).zip(&mut logits) {
            if !allowed.contains(&token) {
                *logit = f64::NEG_INFINITY;
            }
        }
    }
    for word in &params.bad_words {
        let n_before = word.len() - 1;
        if output.len() >= n_before && output[output.len() - n_before..] == word[..n_before] {
            logits[word[n_before] as usize] = f64::NEG_INFINITY;
        }
    }
    if input.position - input.n_prompt < params.min_tokens {
        for &end in params.eos_token_ids.iter().chain(&params.stop_token_ids) {
            logits[end as usize] = f64::NEG_INFINITY;
        }
    }
    for &(token, bias) in &params.logit_bias {
        logits[token as usize] += f64::from(bias);
    }
    for (token, logit) in (0..).zip(&mut logits) {
        let n_output = output.iter().filter(|&&seen| seen == token).count();
        if input.history.contains(&token) {
            let penalty = f64::from(params.repetition_penalty);
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        }
        *logit -= f64::from(params.frequency_penalty) * n_output as f64;
        *logit -= f64::from(params.presence_penalty) * f64::from(u8::from(n_output > 0));
    }
    let mut ranked: Vec<(TokenId, f64)> = (0..).zip(logits.iter().copied()).collect();
    ranked.retain(|(_, logit)| *logit > f64::NEG_INFINITY);
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if params.is_greedy() {
        return ranked.first().map(|&(token, _)| vec![(token, 1.0)]).unwrap_or_default();
    }
    let Some(max) = ranked.first().map(|(_, logit)| *logit) else { return vec![] };
    for (_, weight) in &mut ranked {
        *weight = ((*weight - max) / f64::from(params.temperature)).exp();
    }
    ranked.retain(|(_, weight)| *weight >= f64::from(params.min_p));
    if params.top_k > 0 {
        ranked.truncate(params.top_k as usize);
    }
    let total: f64 = ranked.iter().map(|(_, weight)| weight).sum();
    let (mut sum, mut n_kept) = (0.0, ranked.len());
    if params.top_p < 1.0 {
        let reaches = |(_, weight): &(TokenId, f64)| {
            sum += weight / total;
            sum >= f64::from(params.top_p)
        };
        n_kept = ranked.iter().position(reaches).map_or(ranked.len(), |last| last + 1);
    }
    ranked.truncate(n_kept);
    let total: f64 = ranked.iter().map(|(_, weight)| weight).sum();
    ranked.iter().map(|&(token, weight)| (token, weight / total)).collect()
}

fn sample(logits: &[f32], input: &SamplingInput<'_>) -> Result<TokenId, SequenceError> {
    let mut changed = logits.to_vec();
    let token = Sampler::new().sample(&mut changed, input).map(|chosen| chosen.chosen.token);
    assert_eq!(changed, logits, "the logits come back as they were");
    token
}

fn input<'a>(params: &'a SamplingParams, history: &'a [TokenId], n_prompt: u32) -> SamplingInput<'a> {
    SamplingInput { params, mask: None, history, n_prompt, sequence_index: 0, position: history.len() as u32 }
}

fn pick<T: Clone>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.usize(..choices.len())].clone()
}

fn random_params(rng: &mut Rng, n_vocabulary: u32) -> SamplingParams {
    let mut ids = |most: usize| {
        let mut ids: Vec<TokenId> = (0..rng.usize(1..=most)).map(|_| rng.u32(..n_vocabulary)).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    let (biased, allowed, word, ends) = (ids(5), ids(40), ids(3), ids(3));
    let some = |rng: &mut Rng| rng.u8(..4) == 0;
    SamplingParams {
        temperature: pick(rng, &[0.0, 1e-30, 0.3, 0.7, 1.0, 1.0, 2.5]),
        top_k: pick(rng, &[0, 0, 1, 2, 5, 40, n_vocabulary, 100_000]),
        top_p: if rng.bool() { 1.0 } else { 0.02 + 0.97 * rng.f32() },
        min_p: if rng.bool() { 0.0 } else { 0.5 * rng.f32() },
        repetition_penalty: if some(rng) { 0.5 + rng.f32() } else { 1.0 },
        presence_penalty: if some(rng) { 4.0 * rng.f32() - 2.0 } else { 0.0 },
        frequency_penalty: if some(rng) { 4.0 * rng.f32() - 2.0 } else { 0.0 },
        logit_bias: match some(rng) {
            true => biased.iter().map(|&id| (id, 20.0 * rng.f32() - 10.0)).collect(),
            false => vec![],
        },
        allowed_token_ids: some(rng).then_some(allowed),
        bad_words: if some(rng) { vec![word.clone(), vec![word[0]]] } else { vec![] },
        min_tokens: if some(rng) { rng.u32(..20) } else { 0 },
        eos_token_ids: ends.clone(),
        stop_token_ids: ends,
        seed: rng.u64(..),
        ..SamplingParams::default()
    }
}

/// One random case: the chosen token's interval in the reference's cumulative distribution must contain the
/// random number, within rounding.
fn check_case(seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let n_vocabulary = pick(&mut rng, &[5u32, 64, 700, 3000]);
    let spread = pick(&mut rng, &[0.5, 4.0, 30.0]);
    let logits: Vec<f32> = (0..n_vocabulary).map(|_| spread * (rng.f32() - 0.5)).collect();
    let params = random_params(&mut rng, n_vocabulary);
    let n_prompt = rng.u32(1..10);
    let history: Vec<TokenId> =
        (0..n_prompt + rng.u32(..15)).map(|_| rng.u32(..n_vocabulary.min(20))).collect();
    let mut input = input(&params, &history, n_prompt);
    input.sequence_index = rng.u32(..3);

    let expected = reference(&logits, &input);
    let chosen = match sample(&logits, &input) {
        Ok(token) => token,
        Err(SequenceError::InvalidLogits) if expected.is_empty() => return Ok(()),
        Err(error) => return Err(format!("{error:?}, but {} tokens can be chosen", expected.len())),
    };
    let uniform = philox::uniform(params.seed, input.sequence_index, input.position);
    // Without a filter the cumulative sum is over the whole vocabulary in order of id, else over the kept tokens by
    // rank.
    let mut walked = expected.clone();
    let is_filtered =
        params.top_k > 0 || params.top_p < 1.0 || params.min_p > 0.0 || params.allowed_token_ids.is_some();
    if !is_filtered {
        walked.sort_by_key(|(token, _)| *token);
    }
    let mut below = 0.0;
    for (token, probability) in walked {
        if token == chosen {
            let inside = (below - 1e-5..below + probability + 1e-5).contains(&uniform);
            return if inside || params.is_greedy() {
                Ok(())
            } else {
                Err(format!("chose {token} at {below}..{} for {uniform}", below + probability))
            };
        }
        below += probability;
    }
    Err(format!("chose {chosen}, which is not among the {} possible ones", expected.len()))
}

#[test]
fn agrees_with_the_naive_sampler() {
    for seed in 0..20_000 {
        if let Err(fault) = check_case(seed) {
            panic!("{fault}; rerun with check_case({seed})");
        }
    }
}

/// Probability that a chi-square variable of `degrees` exceeds `statistic` (Wilson and Hilferty's
/// approximation).
fn chi_square_tail(statistic: f64, degrees: f64) -> f64 {
    let variance = 2.0 / (9.0 * degrees);
    let z = ((statistic / degrees).cbrt() - (1.0 - variance)) / variance.sqrt();
    // The normal tail, to 1e-7 (Abramowitz and Stegun 7.1.26).
    let (x, t) = (z.abs() / 2f64.sqrt(), 1.0 / (1.0 + 0.3275911 * z.abs() / 2f64.sqrt()));
    let polynomial = [1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592]
        .iter()
        .fold(0.0, |sum, c| sum * t + c);
    let tail = 0.5 * polynomial * t * (-x * x).exp();
    if z > 0.0 { tail } else { 1.0 - tail }
}

/// Draws at 40,000 positions and tests whether they have the reference's distribution. A correct sampler
/// fails at significance 1e-4 once in ten thousand configurations; the seeds are fixed, so that the outcome
/// is the same in every run.
#[test]
fn draws_have_the_expected_distribution() {
    const N_DRAWS: u32 = 40_000;
    let logits: Vec<f32> =
        [2.0, 1.5, 1.4, 0.9, 0.3, 0.0, -0.2, -0.5, -1.0, -1.1, 0.8, 0.8, 1.5, -3.0, -0.7, 0.1].to_vec();
    let history = [3, 0, 1, 7, 1, 1, 12, 5];
    let base = SamplingParams::default;
    let configurations = [
        base(),
        SamplingParams { temperature: 0.6, ..base() },
        SamplingParams { temperature: 1.7, ..base() },
        SamplingParams { top_k: 5, ..base() },
        SamplingParams { top_k: 1_000, ..base() },
        SamplingParams { top_p: 0.8, ..base() },
        SamplingParams { top_p: 0.35, temperature: 1.3, ..base() },
        SamplingParams { min_p: 0.2, ..base() },
        SamplingParams { top_k: 9, top_p: 0.9, min_p: 0.1, temperature: 0.8, ..base() },
        SamplingParams { repetition_penalty: 1.4, ..base() },
        SamplingParams { presence_penalty: 0.9, frequency_penalty: -0.4, ..base() },
        SamplingParams { repetition_penalty: 0.8, frequency_penalty: 0.5, top_p: 0.9, ..base() },
        SamplingParams { logit_bias: vec![(15, 3.0), (0, -2.0)], ..base() },
        SamplingParams { logit_bias: (0..16).map(|token| (token, -100.0)).collect(), ..base() },
        SamplingParams { allowed_token_ids: Some(vec![2, 4, 9, 13]), ..base() },
        SamplingParams { allowed_token_ids: Some((0..12).collect()), top_k: 4, top_p: 0.8, ..base() },
        SamplingParams { bad_words: vec![vec![1], vec![12, 5, 0], vec![5, 2]], ..base() },
    ];
    let mut sampler = Sampler::new();
    for (idx, params) in configurations.into_iter().enumerate() {
        let params = SamplingParams { seed: 1_000 + idx as u64, ..params };
        // The first three are the prompt.
        let expected = reference(&logits, &input(&params, &history, 3));
        let mut counts = HashMap::<TokenId, f64>::new();
        let mut changed = logits.clone();
        for position in 0..N_DRAWS {
            let at = SamplingInput { position: 3 + position, ..input(&params, &history, 3) };
            *counts.entry(sampler.sample(&mut changed, &at).unwrap().chosen.token).or_default() += 1.0;
        }
        let mut statistic = 0.0;
        for &(token, probability) in &expected {
            let mean = probability * f64::from(N_DRAWS);
            statistic += (counts.remove(&token).unwrap_or(0.0) - mean).powi(2) / mean;
        }
        assert!(counts.is_empty(), "configuration {idx}: impossible tokens {counts:?}");
        if expected.len() > 1 {
            let tail = chi_square_tail(statistic, expected.len() as f64 - 1.0);
            assert!(tail > 1e-4, "configuration {idx}: chi-square {statistic}, p = {tail:e}");
        }
    }
}

/// Draws at neighbouring positions are independent: a chi-square test over pairs.
#[test]
fn neighbouring_draws_are_independent() {
    const N: u32 = 40_000;
    let mut logits = vec![0.0; 4];
    let params = SamplingParams { seed: 5, ..SamplingParams::default() };
    let mut sampler = Sampler::new();
    let mut draw = |sequence_index, position| {
        let at = SamplingInput {
            params: &params,
            mask: None,
            history: &[],
            n_prompt: 1,
            sequence_index,
            position,
        };
        sampler.sample(&mut logits, &at).unwrap().chosen.token as usize
    };
    for (name, second) in [("position", (0, 1)), ("sequence", (1, 0))] {
        let mut pairs = [[0f64; 4]; 4];
        for position in 1..=N {
            let a = draw(0, position);
            let b = draw(second.0, position + second.1);
            pairs[a][b] += 1.0;
        }
        let mean = f64::from(N) / 16.0;
        let statistic: f64 = pairs.iter().flatten().map(|count| (count - mean).powi(2) / mean).sum();
        let tail = chi_square_tail(statistic, 15.0);
        assert!(tail > 1e-4, "{name}: chi-square {statistic}, p = {tail:e}");
    }
}

#[test]
fn greedy_takes_the_smallest_of_equal_ids_and_survives_extreme_parameters() {
    let logits = [1.0, 7.5, -2.0, 7.5, 7.5];
    for temperature in [0.0, 1e-30, 9e-6] {
        let params = SamplingParams { temperature, top_p: 0.5, seed: 3, ..SamplingParams::default() };
        assert_eq!(sample(&logits, &input(&params, &[0], 1)), Ok(1));
    }
    let all_banned_alike = SamplingParams {
        temperature: 0.0,
        logit_bias: (0..5).map(|token| (token, -100.0)).collect(),
        ..SamplingParams::default()
    };
    assert_eq!(sample(&logits, &input(&all_banned_alike, &[0], 1)), Ok(1));
    // The smallest temperatures above greedy, with logits whose quotients overflow: the most likely token is chosen.
    let params = SamplingParams { temperature: 1.1e-5, ..SamplingParams::default() };
    assert_eq!(sample(&[-3e38, 3e38, 0.0], &input(&params, &[0], 1)), Ok(1));
    let allowed = SamplingParams {
        temperature: 0.0,
        allowed_token_ids: Some(vec![0, 3, 4]),
        ..SamplingParams::default()
    };
    assert_eq!(sample(&logits, &input(&allowed, &[0], 1)), Ok(3));
}

#[test]
fn logits_that_are_not_numbers_fail_the_row() {
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let drawn = SamplingParams { top_k: 2, ..SamplingParams::default() };
    for params in [greedy, drawn, SamplingParams::default()] {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut logits = vec![0.5; 20];
            logits[13] = bad;
            let failed = Sampler::new().sample(&mut logits, &input(&params, &[0], 1)).map(|_| ());
            assert_eq!(failed, Err(SequenceError::InvalidLogits));
        }
        assert_eq!(
            sample(&[f32::NEG_INFINITY; 3], &input(&params, &[0], 1)),
            Err(SequenceError::InvalidLogits)
        );
        assert_eq!(sample(&[f32::NEG_INFINITY, -1e30, f32::NEG_INFINITY], &input(&params, &[0], 1)), Ok(1));
    }
    let nothing_left = SamplingParams {
        min_tokens: 5,
        eos_token_ids: vec![2],
        allowed_token_ids: Some(vec![2]),
        ..SamplingParams::default()
    };
    assert_eq!(sample(&[0.0; 3], &input(&nothing_left, &[0], 1)), Err(SequenceError::InvalidLogits));
}

fn check_logprobs(logits: &[f32], reported: ChosenToken<'_>, n_top: usize) {
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
    let mut sorted: Vec<(TokenId, f32)> = (0..).zip(logits.iter().copied()).collect();
    sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    assert_eq!(reported.top.len(), n_top.min(logits.len()));
    for (entry, expected) in reported.top.iter().zip(&sorted) {
        assert_eq!(entry.token, expected.0);
    }
    for entry in reported.top.iter().chain([&reported.chosen]) {
        let logit = logits[entry.token as usize];
        assert_eq!(entry.rank as usize, 1 + logits.iter().filter(|&&other| other > logit).count());
        assert!((f64::from(entry.logprob) - (f64::from(logit) - sum.ln())).abs() < 1e-5);
    }
}

#[test]
fn logprobs_are_those_of_the_raw_logits() {
    let mut rng = Rng::with_seed(23);
    let mut sampler = Sampler::new();
    for n_vocabulary in [1u32, 9, 513, 5000] {
        // Rounded, so that there are ties.
        let mut logits: Vec<f32> = (0..n_vocabulary).map(|_| (rng.f32() * 40.0).round() / 4.0).collect();
        for n_top in [0, 1, 20, n_vocabulary, n_vocabulary + 7] {
            let params = SamplingParams {
                temperature: 0.3,
                logit_bias: vec![(0, 50.0)],
                logprobs: Some(n_top),
                ..SamplingParams::default()
            };
            let raw = logits.clone();
            let reported = sampler.sample(&mut logits, &input(&params, &[0], 1)).unwrap();
            assert_eq!(reported.chosen.token, 0);
            check_logprobs(&raw, reported, n_top as usize);
            let token = rng.u32(..n_vocabulary);
            let reported = sampler.logprobs(&raw, token, n_top).unwrap();
            assert_eq!(reported.chosen.token, token);
            check_logprobs(&raw, reported, n_top as usize);
        }
    }
    assert_eq!(sampler.logprobs(&[0.0; 4], 4, 1).map(|_| ()), Err(SequenceError::InvalidLogits));
}

/// A sampler that was used for other sequences chooses as a new one does.
#[test]
fn earlier_calls_do_not_change_later_ones() {
    let mut rng = Rng::with_seed(99);
    let mut used = Sampler::new();
    for _ in 0..2_000 {
        let n_vocabulary = pick(&mut rng, &[17u32, 900]);
        let logits: Vec<f32> = (0..n_vocabulary).map(|_| rng.f32() * 6.0).collect();
        let params = random_params(&mut rng, n_vocabulary);
        let history: Vec<TokenId> = (0..8).map(|_| rng.u32(..n_vocabulary)).collect();
        let input = input(&params, &history, 4);
        let mut changed = logits.clone();
        let of_used = used.sample(&mut changed, &input).map(|chosen| chosen.chosen.token);
        assert_eq!(of_used, sample(&logits, &input));
    }
}
