//! Masks in the sampler: they leave what they allow and nothing else, whatever the other parameters say.

use fastrand::Rng;
use throng_core::constraint::TokenMask;
use throng_core::request::{SamplingParams, TokenId};
use throng_core::scheduling::batch::SequenceError;
use throng_model::sampler::{Sampler, SamplingInput};

fn sample(
    logits: &[f32],
    params: &SamplingParams,
    mask: Option<&TokenMask>,
) -> Result<(TokenId, u32), SequenceError> {
    let mut changed = logits.to_vec();
    let input =
        SamplingInput { params, mask, history: &[1, 2, 3], n_prompt: 2, sequence_index: 0, position: 3 };
    let chosen = Sampler::new().sample(&mut changed, &input).map(|chosen| chosen.chosen);
    assert_eq!(changed, logits, "the logits come back as they were");
    chosen.map(|chosen| (chosen.token, chosen.logprob.to_bits()))
}

fn params(rng: &mut Rng, vocabulary_size: u32) -> SamplingParams {
    let token = |rng: &mut Rng| rng.u32(..vocabulary_size);
    SamplingParams {
        temperature: *rng.choice(&[0.0, 0.7, 1.0]).expect("not empty"),
        top_k: *rng.choice(&[0, 0, 5]).expect("not empty"),
        top_p: *rng.choice(&[1.0, 0.8]).expect("not empty"),
        min_p: *rng.choice(&[0.0, 0.05]).expect("not empty"),
        repetition_penalty: *rng.choice(&[1.0, 1.2]).expect("not empty"),
        bad_words: if rng.bool() { vec![vec![token(rng)]] } else { vec![] },
        logit_bias: if rng.bool() { vec![(token(rng), 5.0)] } else { vec![] },
        seed: rng.u64(..),
        logprobs: Some(0),
        ..Default::default()
    }
}

#[test]
fn a_mask_is_obeyed() {
    let mut rng = Rng::with_seed(3);
    let mut n_failed = 0;
    for case in 0..3000 {
        let vocabulary_size = rng.u32(1..400);
        let logits: Vec<f32> = (0..vocabulary_size).map(|_| rng.f32() * 20.0 - 10.0).collect();
        let params = params(&mut rng, vocabulary_size);
        let mut mask = TokenMask::new(vocabulary_size);
        mask.allow_all();
        assert_eq!(sample(&logits, &params, Some(&mask)), sample(&logits, &params, None).map_err(masked));
        mask.reset(vocabulary_size);
        let one_in = *rng.choice(&[2, 4, 16, 100]).expect("not empty");
        (0..vocabulary_size).filter(|_| rng.u32(..one_in) == 0).for_each(|token| mask.allow(token));
        let chosen = sample(&logits, &params, Some(&mask));
        let banned: Vec<TokenId> = params.bad_words.iter().map(|word| word[0]).collect();
        match chosen {
            Ok((token, _)) => assert!(mask.contains(token) && !banned.contains(&token), "case {case}"),
            Err(error) => {
                assert!(mask.tokens().all(|token| banned.contains(&token)), "case {case}");
                assert_eq!(error, SequenceError::NothingAllowed);
                n_failed += 1;
            }
        }
        // As a list of tokens, and beside one.
        let listed: Vec<TokenId> = mask.tokens().collect();
        if !listed.is_empty() {
            let with_list = SamplingParams { allowed_token_ids: Some(listed), ..params.clone() };
            let expected = sample(&logits, &with_list, None).map_err(masked);
            assert_eq!(sample(&logits, &with_list, Some(&mask)), expected, "case {case}");
            if params.is_greedy() {
                assert_eq!(chosen, expected, "case {case}");
            }
        }
    }
    assert!(n_failed > 50, "{n_failed}");
}

#[test]
fn a_mask_of_another_vocabulary_allows_nothing_beyond_it() {
    let params = SamplingParams { temperature: 0.0, ..Default::default() };
    let mut mask = TokenMask::new(40);
    mask.allow_all();
    let logits: Vec<f32> = (0..100).map(|token| token as f32).collect();
    assert_eq!(sample(&logits, &params, Some(&mask)).map(|chosen| chosen.0), Ok(39));
    mask.reset(1000);
    mask.allow_all();
    assert_eq!(sample(&logits, &params, Some(&mask)).map(|chosen| chosen.0), Ok(99));
}

/// Under a mask the sampler says why no token is left.
fn masked(error: SequenceError) -> SequenceError {
    match error {
        SequenceError::InvalidLogits => SequenceError::NothingAllowed,
        other => other,
    }
}
