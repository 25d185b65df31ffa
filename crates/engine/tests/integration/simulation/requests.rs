//! Random requests over a few shared prefixes and tenants.

use std::sync::Arc;

use fastrand::Rng;
use throng_core::constraint::TokenConstraint;
use throng_core::request::{
    BeamSearch, EarlyStopping, Priority, Request, RequestId, SamplingParams, TenantId, TokenId,
};
use throng_core::scheduling::executor::ExecutorCapacity;
use throng_testkit::paper_constraint::PaperConstraint;

/// Makes requests of one world.
pub struct RequestSource {
    prefix: Vec<TokenId>,
    vocabulary_size: u32,
    most_own: usize,
    most_output: u32,
    n_made: u64,
}

impl RequestSource {
    pub fn new(rng: &mut Rng, capacity: &ExecutorCapacity) -> Self {
        let limit = (capacity.n_blocks as usize * 16).min(capacity.max_sequence_tokens as usize);
        let vocabulary_size = capacity.vocabulary_size;
        let n_prefix = rng.usize(0..limit / 2 + 1);
        Self {
            prefix: tokens(rng, n_prefix, vocabulary_size),
            vocabulary_size,
            most_own: rng.usize(1..=(limit / 4).max(1)),
            most_output: rng.u32(1..80),
            n_made: 0,
        }
    }

    /// An id that no request had.
    pub fn next_id(&mut self) -> RequestId {
        self.n_made += 1;
        RequestId(self.n_made)
    }

    pub fn next(&mut self, rng: &mut Rng) -> Request {
        let id = self.next_id();
        let mut prompt = self.prefix[..rng.usize(0..=self.prefix.len())].to_vec();
        let n_own = rng.usize(1..=self.most_own);
        prompt.extend(tokens(rng, n_own, self.vocabulary_size));
        if one_in(rng, 100) {
            prompt.push(self.vocabulary_size);
        }
        let n = if one_in(rng, 4) { rng.u32(2..=4) } else { 1 };
        let mut sampling = self.sampling(rng);
        if one_in(rng, 15) {
            sampling.max_tokens = sampling.max_tokens.min(20);
            sampling.beams = Some(BeamSearch {
                width: rng.u32(n..=5),
                length_penalty: [0.0, 1.0, -1.0][rng.usize(0..3)],
                early_stopping: [EarlyStopping::WhenFull, EarlyStopping::WhenUnableToImprove]
                    [rng.usize(0..2)],
            });
        }
        Request {
            tenant: TenantId(["a", "b", "c"][rng.usize(0..3)].into()),
            cache_salt: one_in(rng, 6).then(|| Arc::from("salt")),
            n,
            priority: Priority(if one_in(rng, 3) { rng.i32(-2..=2) } else { 0 }),
            constraint: one_in(rng, 3).then(|| self.constraint(rng)).filter(|_| sampling.beams.is_none()),
            ..Request::plain(id, prompt, sampling)
        }
    }

    /// An id that one of the latest requests had.
    pub fn some_id(&self, rng: &mut Rng) -> RequestId {
        RequestId(rng.u64(self.n_made.saturating_sub(10)..=self.n_made))
    }

    fn constraint(&self, rng: &mut Rng) -> Arc<dyn TokenConstraint> {
        let (seed, one_in_forced) = (rng.u64(0..4), rng.u64(0..4));
        let vocabulary_size = self.vocabulary_size;
        Arc::new(PaperConstraint { vocabulary_size, seed, one_in_forced, fails_after: None })
    }

    fn sampling(&self, rng: &mut Rng) -> SamplingParams {
        let token = |rng: &mut Rng| rng.u32(0..self.vocabulary_size);
        SamplingParams {
            temperature: rng.u32(0..2) as f32,
            seed: rng.u64(0..4),
            repetition_penalty: if one_in(rng, 6) { 1.1 } else { 1.0 },
            max_tokens: if one_in(rng, 20) { 0 } else { rng.u32(1..=self.most_output) },
            eos_token_ids: if one_in(rng, 4) { vec![token(rng)] } else { vec![] },
            logprobs: one_in(rng, 3).then(|| rng.u32(0..20)),
            prompt_logprobs: one_in(rng, 6).then(|| rng.u32(0..4)),
            ..SamplingParams::default()
        }
    }
}

pub fn one_in(rng: &mut Rng, n: u32) -> bool {
    rng.u32(0..n) == 0
}

fn tokens(rng: &mut Rng, n: usize, vocabulary_size: u32) -> Vec<TokenId> {
    (0..n).map(|_| rng.u32(0..vocabulary_size)).collect()
}
