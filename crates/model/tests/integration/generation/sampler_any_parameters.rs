//! For all parameters that a request may have, a token is chosen: no penalty, bias or temperature makes a
//! logit NaN, and if one allowed token is never banned, one is always left.

use fastrand::Rng;
use throng_core::request::{SamplingParams, TokenId};
use throng_model::sampler::{Sampler, SamplingInput};

const N_CASES: usize = 20_000;

/// The ends of ranges, and numbers that round, underflow or overflow in f32.
const TEMPERATURES: &[f32] = &[0.0, 1e-45, 1e-40, 1e-30, 9e-6, 1e-5, 1e-3, 0.5, 1.0, 2.0];
const PENALTIES: &[f32] = &[1e-45, 1e-40, 1e-38, 1e-20, 0.01, 0.5, 1.0, 1.1, 2.0, 100.0];
const SHARES: &[f32] = &[1e-45, 1e-40, 1e-30, 1e-7, 0.1, 0.5, 0.999, 1.0];
const LOGITS: &[f32] = &[0.0, -0.0, 1e-45, -1e-40, 1e-30, 1.0, -1.0, 30.0, -30.0, 1e4, -1e4, 1e30, -1e30];

fn any<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.usize(..from.len())]
}

fn tokens(rng: &mut Rng, vocabulary_size: usize, max: usize) -> Vec<TokenId> {
    let n = rng.usize(1..=max);
    (0..n).map(|_| rng.u32(..vocabulary_size as u32)).collect()
}

/// Random parameters that the API accepts.
fn params(rng: &mut Rng, vocabulary_size: usize) -> SamplingParams {
    let mut biases: Vec<(TokenId, f32)> = Vec::new();
    if rng.bool() {
        let n = if rng.bool() { vocabulary_size } else { rng.usize(..vocabulary_size) };
        biases.extend((0..n as u32).map(|token| (token, any(rng, &[-100.0, 100.0, 1e-45, 0.0]))));
    }
    let mut allowed = tokens(rng, vocabulary_size, 4);
    allowed.sort_unstable();
    allowed.dedup();
    let n_words = rng.usize(..4);
    SamplingParams {
        temperature: any(rng, TEMPERATURES),
        top_k: any(rng, &[0, 1, 2, vocabulary_size as u32, u32::MAX]),
        top_p: any(rng, SHARES),
        min_p: if rng.bool() { 0.0 } else { any(rng, SHARES) },
        repetition_penalty: any(rng, PENALTIES),
        presence_penalty: any(rng, &[-2.0, 0.0, 2.0]),
        frequency_penalty: any(rng, &[-2.0, 0.0, 2.0]),
        logit_bias: biases,
        allowed_token_ids: rng.bool().then_some(allowed),
        bad_words: (0..n_words).map(|_| tokens(rng, vocabulary_size, 2)).collect(),
        min_tokens: rng.u32(..4),
        eos_token_ids: tokens(rng, vocabulary_size, 2),
        stop_token_ids: if rng.bool() { Vec::new() } else { tokens(rng, vocabulary_size, 3) },
        seed: rng.u64(..),
        logprobs: rng.bool().then_some(2),
        ..SamplingParams::default()
    }
}

/// Whether the API accepts the parameters: at least one token may be chosen at every position.
fn leaves_one(params: &SamplingParams, vocabulary_size: usize) -> bool {
    let ends = params.eos_token_ids.iter().chain(&params.stop_token_ids);
    let is_banned = |token: &TokenId| {
        params.bad_words.iter().any(|word| word.last() == Some(token))
            || (params.min_tokens > 0 && ends.clone().any(|end| end == token))
    };
    match &params.allowed_token_ids {
        Some(allowed) => allowed.iter().any(|token| !is_banned(token)),
        None => (0..vocabulary_size as u32).any(|token| !is_banned(&token)),
    }
}

#[test]
fn a_token_is_chosen_whatever_the_parameters() {
    let seed =
        std::env::var("THRONG_SEED").map_or_else(|_| fastrand::u64(..), |s| s.parse().expect("a number"));
    println!("THRONG_SEED={seed} cargo test -p throng-model --test integration sampler_any_parameters");
    let mut rng = Rng::with_seed(seed);
    let mut sampler = Sampler::new();
    let mut n_sampled = 0;
    for case in 0..N_CASES {
        let vocabulary_size = any(&mut rng, &[3, 17, 300]);
        let params = params(&mut rng, vocabulary_size);
        let is_flat = rng.bool();
        let mut logits: Vec<f32> = (0..vocabulary_size)
            .map(|_| if is_flat { rng.f32() * 40.0 - 20.0 } else { any(&mut rng, LOGITS) })
            .collect();
        if !leaves_one(&params, vocabulary_size) {
            continue;
        }
        let history = tokens(&mut rng, vocabulary_size, 40);
        let n_prompt = rng.usize(1..=history.len());
        let input = SamplingInput {
            params: &params,
            mask: None,
            history: &history,
            n_prompt: n_prompt as u32,
            sequence_index: 0,
            position: history.len() as u32,
        };
        let before = logits.clone();
        let chosen = sampler.sample(&mut logits, &input);
        let chosen =
            chosen.unwrap_or_else(|error| panic!("case {case}: {error:?}: {params:?} {logits:?}")).chosen;
        assert!((chosen.token as usize) < vocabulary_size, "case {case}");
        assert!(
            chosen.logprob.is_finite() || before[chosen.token as usize].abs() > 1e29,
            "case {case}: {chosen:?}"
        );
        let allowed = params.allowed_token_ids.as_ref();
        assert!(allowed.is_none_or(|allowed| allowed.contains(&chosen.token)), "case {case}: {params:?}");
        n_sampled += 1;
    }
    assert!(n_sampled > N_CASES / 2, "{n_sampled} sampled");
}
