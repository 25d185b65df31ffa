//! Random requests over a few shared prefixes, tenants and salts.

use std::sync::Arc;

use fastrand::Rng;
use throng_core::constraint::TokenConstraint;
use throng_core::prompt_media::{ContentDigest, PromptMedia, PromptSpan, RotaryPosition, SpanKind};
use throng_core::request::{
    Adapter, AdapterId, BeamSearch, CacheMark, EarlyStopping, Priority, Request, RequestId, SamplingParams,
    TenantId, TokenId,
};
use throng_core::scheduling::executor::ExecutorCapacity;
use throng_testkit::paper_constraint::PaperConstraint;

/// Makes requests of one world.
pub struct RequestSource {
    prefixes: Vec<Vec<TokenId>>,
    vocabulary_size: u32,
    longest_prompt: usize,
    most_output: u32,
    n_made: u64,
}

impl RequestSource {
    pub fn new(rng: &mut Rng, capacity: &ExecutorCapacity) -> Self {
        let limit = (capacity.n_blocks as usize * 16).min(capacity.max_sequence_tokens as usize);
        let most = (limit / rng.usize(1..8)).max(1);
        let longest_prompt = rng.usize(1..=most);
        let vocabulary_size = capacity.vocabulary_size;
        let prefixes = (0..rng.usize(1..4)).map(|_| tokens(rng, longest_prompt, vocabulary_size)).collect();
        let most_output = rng.u32(1..150);
        Self { prefixes, vocabulary_size, longest_prompt, most_output, n_made: 0 }
    }

    pub fn next(&mut self, rng: &mut Rng) -> Request {
        self.n_made += 1;
        let mut prompt = rng.choice(&self.prefixes).cloned().unwrap_or_default();
        prompt.truncate(rng.usize(0..=prompt.len()));
        let n_own = rng.usize(1..=20);
        let own = tokens(rng, n_own, self.vocabulary_size);
        // Some repeat themselves.
        let n_times = if one_in(rng, 3) { 3 } else { 1 };
        prompt.extend(own.repeat(n_times));
        if !one_in(rng, 100) {
            prompt.truncate(self.longest_prompt);
        }
        if one_in(rng, 500) {
            prompt.push(self.vocabulary_size);
        }
        let n_prompt = prompt.len();
        let mut sampling = self.sampling(rng);
        let mut n = if one_in(rng, 5) { rng.u32(2..=5) } else { 1 };
        if one_in(rng, 20) {
            n = rng.u32(1..=4);
            search_beams(rng, n, &mut sampling);
        }
        Request {
            tenant: TenantId(["a", "b", "c"][rng.usize(0..3)].into()),
            cache_salt: one_in(rng, 4).then(|| Arc::from("salt")),
            cache_marks: (0..rng.usize(0..4)).map(|_| mark(rng)).collect(),
            n,
            priority: Priority(if one_in(rng, 3) { rng.i32(-2..=2) } else { 0 }),
            constraint: one_in(rng, 4).then(|| self.constraint(rng)).filter(|_| sampling.beams.is_none()),
            media: one_in(rng, 4).then(|| Arc::new(media(rng, n_prompt))),
            adapter: one_in(rng, 4).then(|| Adapter::numbered(AdapterId(rng.u32(0..2)))),
            ..Request::plain(RequestId(self.n_made), prompt, sampling)
        }
    }

    /// A request id, of an existing request or not.
    pub fn some_id(&self, rng: &mut Rng) -> RequestId {
        RequestId(rng.u64(self.n_made.saturating_sub(10)..=self.n_made))
    }

    fn constraint(&self, rng: &mut Rng) -> Arc<dyn TokenConstraint> {
        Arc::new(PaperConstraint {
            vocabulary_size: self.vocabulary_size,
            seed: rng.u64(0..4),
            one_in_forced: rng.u64(0..4),
            fails_after: one_in(rng, 4).then(|| rng.usize(0..self.most_output as usize)),
        })
    }

    fn sampling(&self, rng: &mut Rng) -> SamplingParams {
        let max_tokens = if one_in(rng, 20) { 0 } else { rng.u32(1..=self.most_output) };
        let token = |rng: &mut Rng| rng.u32(0..self.vocabulary_size);
        let mut sampling = SamplingParams {
            temperature: if one_in(rng, 2) { 0.0 } else { 1.0 },
            seed: rng.u64(0..4),
            max_tokens,
            ignore_eos: one_in(rng, 5),
            eos_token_ids: if one_in(rng, 4) { vec![token(rng)] } else { vec![] },
            stop_token_ids: if one_in(rng, 8) { vec![token(rng), token(rng)] } else { vec![] },
            min_tokens: if one_in(rng, 4) { rng.u32(0..=max_tokens) } else { 0 },
            logprobs: one_in(rng, 4).then(|| rng.u32(0..4)),
            prompt_logprobs: one_in(rng, 4).then(|| rng.u32(0..4)),
            max_draft_tokens: if one_in(rng, 8) { rng.u32(0..3) } else { u32::MAX },
            ..SamplingParams::default()
        };
        match rng.u32(0..12) {
            0 => sampling.repetition_penalty = 1.1,
            1 => sampling.bad_words = vec![vec![token(rng)], vec![token(rng), token(rng)]],
            2 => {
                sampling.min_tokens = 0;
                let first = rng.u32(0..self.vocabulary_size - 1);
                sampling.allowed_token_ids = Some(vec![first, first + 1]);
            }
            // An output that repeats itself.
            3 | 4 => {
                sampling.min_tokens = 0;
                sampling.allowed_token_ids = Some(vec![token(rng)]);
            }
            _ => {}
        }
        sampling
    }
}

/// A beam search for `n` answers.
fn search_beams(rng: &mut Rng, n: u32, sampling: &mut SamplingParams) {
    sampling.max_tokens = sampling.max_tokens.min(40);
    sampling.min_tokens = sampling.min_tokens.min(sampling.max_tokens);
    let stops =
        [EarlyStopping::WhenFull, EarlyStopping::WhenUnlikelyToImprove, EarlyStopping::WhenUnableToImprove];
    sampling.beams = Some(BeamSearch {
        width: rng.u32(n..=6),
        length_penalty: [0.0, 1.0, 0.7, 2.0, -1.0][rng.usize(0..5)],
        early_stopping: stops[rng.usize(0..3)],
    });
}

pub fn one_in(rng: &mut Rng, n: u32) -> bool {
    rng.u32(0..n) == 0
}

fn tokens(rng: &mut Rng, n: usize, vocabulary_size: u32) -> Vec<TokenId> {
    (0..n).map(|_| rng.u32(0..vocabulary_size)).collect()
}

/// Up to two images of few contents at few places, and positions as images have them.
fn media(rng: &mut Rng, n_prompt: usize) -> PromptMedia {
    let mut media = PromptMedia::default();
    for start in [2, 30] {
        let (len, digest) = (rng.u32(1..3) * 9, ContentDigest([rng.u8(0..2); 32]));
        if start as usize + len as usize <= n_prompt && !one_in(rng, 3) {
            media.spans.push(PromptSpan { start, len, digest, kind: SpanKind::Image });
        }
    }
    if one_in(rng, 2) {
        media.positions = (0..n_prompt as u32).map(|i| RotaryPosition([i.min(20), i, i])).collect();
    }
    media
}

fn mark(rng: &mut Rng) -> CacheMark {
    let n_tokens = if one_in(rng, 3) { CacheMark::WHOLE } else { rng.u32(0..200) };
    CacheMark { n_tokens, keep_s: rng.u32(0..4) }
}
