//! Sampling allocates nothing once the buffers have grown.

use allocation_counter::measure;
use throng_core::request::{SamplingParams, TokenId};
use throng_model::sampler::{Sampler, SamplingInput};

#[test]
fn a_steady_state_allocates_nothing() {
    const N_VOCABULARY: u32 = 20_000;
    let mut rng = fastrand::Rng::with_seed(4);
    let mut logits: Vec<f32> = (0..N_VOCABULARY).map(|_| rng.f32() * 12.0).collect();
    let history: Vec<TokenId> = (0..500).map(|_| rng.u32(..N_VOCABULARY)).collect();
    let base = SamplingParams::default;
    let all_params = [
        base(),
        SamplingParams { temperature: 0.0, logprobs: Some(5), ..base() },
        SamplingParams { top_p: 0.9, logprobs: Some(20), ..base() },
        SamplingParams { top_k: 40, min_p: 0.1, top_p: 0.95, ..base() },
        SamplingParams { min_p: 0.3, repetition_penalty: 1.1, frequency_penalty: 0.3, ..base() },
        SamplingParams { allowed_token_ids: Some((0..900).collect()), bad_words: vec![vec![1, 2]], ..base() },
    ];
    let mut sampler = Sampler::new();
    let mut run = |positions: std::ops::Range<u32>| {
        for position in positions {
            for params in &all_params {
                let input = SamplingInput {
                    params,
                    mask: None,
                    history: &history,
                    n_prompt: 100,
                    sequence_index: 0,
                    position,
                };
                sampler.sample(&mut logits, &input).unwrap();
            }
        }
    };
    run(600..602);
    assert_eq!(measure(|| run(602..640)).count_total, 0);
}
