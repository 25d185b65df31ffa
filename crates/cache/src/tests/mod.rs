//! The cache under random requests of several tenants and random readers: each reader gets the answer to its
//! own request.

mod disk;

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use fastrand::Rng;
use futures_util::{FutureExt, Stream, StreamExt};
use throng_core::prompt_media::{ContentDigest, PromptMedia, PromptSpan, RotaryPosition, SpanKind};
use throng_core::request::{
    Adapter, AdapterId, BeamSearch, FinishReason, Priority, SamplingParams, TenantId,
};
use throng_core::scheduling::batch::TokenLogprob;
use throng_fleet::constraint::OutputForm;
use throng_text::DetokenizeOptions;

use throng_fleet::replica::{Continuations, ReplicaErrorKind, RequestedAdapter, Timing, TokenReport};

use super::*;

/// A generation that returns these events, and is not ready at random.
#[derive(Debug)]
struct Script {
    events: VecDeque<ReplicaEvent>,
    rng: Rng,
    aborted: Vec<u32>,
}

impl Script {
    /// Makes the script fail after this number of events.
    fn failing(mut self, n_events: usize) -> Self {
        self.events.truncate(n_events);
        let error = ReplicaError { kind: ReplicaErrorKind::Failed, retryable: false, message: String::new() };
        self.events.push_back(ReplicaEvent::Failed { error });
        self
    }
}

impl Stream for Script {
    type Item = ReplicaEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ReplicaEvent>> {
        if self.rng.bool() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.events.pop_front())
    }
}

impl Generation for Script {
    fn abort_continuation(&mut self, index: u32) {
        self.aborted.push(index);
        let is_of =
            |event: &ReplicaEvent| matches!(event, ReplicaEvent::Token { index: i, .. } if *i == index);
        self.events.retain(|event| !is_of(event));
        for event in &mut self.events {
            match event {
                ReplicaEvent::Finished { index: i, reason, .. } if *i == index => {
                    *reason = FinishReason::Abort
                }
                _ => {}
            }
        }
    }
}

fn token(index: u32, token: u32) -> ReplicaEvent {
    let chosen = TokenLogprob { token, logprob: 0.0, rank: 0 };
    ReplicaEvent::Token { index, report: TokenReport { chosen, top: Vec::new() } }
}

fn finished(index: u32, n_output: u32) -> ReplicaEvent {
    let timing = Timing { n_output, ..Timing::default() };
    ReplicaEvent::Finished { index, reason: FinishReason::Length, timing }
}

/// `n` continuations of `n_tokens` each, all named by `value`.
fn script(value: u32, n: u32, n_tokens: u32, rng: &mut Rng) -> Script {
    let mut events = VecDeque::from([ReplicaEvent::Prompt { cached_tokens: value, logprobs: Vec::new() }]);
    events
        .extend((0..n_tokens).flat_map(|t| (0..n).map(move |index| token(index, value ^ (t << 8) ^ index))));
    events.extend((0..n).map(|index| finished(index, n_tokens)));
    Script { events, rng: rng.fork(), aborted: Vec::new() }
}

fn starting(script: Script) -> Starting {
    std::future::ready(Ok(Box::new(script) as Box<dyn Generation>)).boxed()
}

/// Polls until an event arrives.
fn next(generation: &mut (impl Stream<Item = ReplicaEvent> + Unpin)) -> Option<ReplicaEvent> {
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(event) = generation.poll_next_unpin(&mut cx) {
            return event;
        }
    }
}

fn kept(cache: &ResponseCache) -> &Arc<Kept> {
    cache.0.as_ref().expect("a cache")
}

/// Answer of a generation for a request, as by [`ResponseCache::generate`].
fn answer(
    cache: &ResponseCache,
    key: &InFlightKey,
    n: u32,
    start: impl FnOnce() -> Starting,
) -> (Box<dyn Generation>, CacheUse) {
    let kept = kept(cache);
    let reader = |shared, id, begun| {
        let reader = Reader::new(shared, id, n, begun, kept.clone(), key.answer.clone());
        let started = reader.started().now_or_never().expect("starts at once");
        Box::new(started.expect("taken in")) as Box<dyn Generation>
    };
    match kept.find(key, CachePolicy::Use, start, n) {
        Found::Kept(answer) => (Box::new(Replay::new(answer, n)), CacheUse::Hit),
        Found::Joined(shared, id, begun) => (reader(shared, id, begun), CacheUse::Coalesced),
        Found::Begun(shared, begun) => (reader(shared, 0, begun), CacheUse::Miss),
    }
}

/// An image or a sound in the place of a prompt token, at a position of text or another one.
fn random_media(rng: &mut Rng) -> PromptMedia {
    let (start, digest) = (rng.u32(..2), ContentDigest([rng.u8(..2); 32]));
    let kind = if rng.bool() { SpanKind::Image } else { SpanKind::Audio };
    let position = RotaryPosition([0, 0, rng.u32(..2)]);
    let positions = if rng.bool() { vec![position; 3] } else { Vec::new() };
    PromptMedia { spans: vec![PromptSpan { start, len: 1, digest, kind }], positions, contents: vec![] }
}

/// A request with few values for each field, so that equal ones are frequent, and with all inputs of its
/// answer.
fn random_request(rng: &mut Rng) -> (ReplicaRequest, DetokenizeOptions, String) {
    let mut sampling = SamplingParams { seed: 7, ..SamplingParams::default() };
    let mut request = ReplicaRequest {
        tenant: TenantId(Arc::from(["", "a", "b", "ab"][rng.usize(..4)])),
        cache_salt: None,
        session: None,
        cache_marks: Vec::new(),
        priority: Priority(rng.i32(..2)),
        prompt: Arc::from([1, 2, 3]),
        media: None,
        sampling: Arc::new(SamplingParams::default()),
        constraint: None,
        adapter: None,
        continuations: Continuations::New { n: 1 },
        holder: None,
    };
    let mut text = DetokenizeOptions::default();
    for _ in 0..rng.usize(..3) {
        match rng.u8(..27) {
            0 => sampling.temperature = 0.5,
            1 => sampling.temperature = 0.0,
            2 => sampling.top_k = 3,
            3 => sampling.top_p = 0.5,
            4 => sampling.min_p = 0.5,
            5 => sampling.repetition_penalty = 1.5,
            6 => sampling.presence_penalty = 0.5,
            7 => sampling.frequency_penalty = 0.5,
            8 => sampling.logit_bias.push((rng.u32(..2), 1.0)),
            9 => sampling.allowed_token_ids = Some(vec![rng.u32(..2)]),
            10 => sampling.bad_words.push(vec![1; rng.usize(1..3)]),
            11 => sampling.min_tokens += 1,
            12 => sampling.max_tokens += 1,
            13 => sampling.eos_token_ids.push(1),
            14 => sampling.ignore_eos = true,
            15 => sampling.stop_token_ids.push(1),
            16 => sampling.seed = 8,
            17 => sampling.logprobs = Some(rng.u32(..2)),
            18 => sampling.prompt_logprobs = Some(rng.u32(..2)),
            19 => {
                let early_stopping = Default::default();
                sampling.beams = Some(BeamSearch { width: 2, length_penalty: 1.0, early_stopping });
            }
            20 => sampling.max_draft_tokens = rng.u32(..2),
            21 => request.cache_salt = Some(Arc::from(["", "s"][rng.usize(..2)])),
            22 => request.prompt = Arc::from(&[1, 2, 3, 4][..rng.usize(2..5)]),
            23 => {
                let name = Arc::from(["x", "y"][rng.usize(..2)]);
                let adapter = Adapter::numbered(AdapterId(rng.u32(..2)));
                request.adapter = Some(RequestedAdapter { adapter, name });
            }
            24 => request.continuations = Continuations::New { n: 2 },
            25 => request.media = Some(Arc::new(random_media(rng))),
            _ => text.stop.push("x".repeat(rng.usize(1..3))),
        }
    }
    // What the answer is made of, in plain text: independent of how the key is made.
    let drawn = (sampling.temperature > 0.0 && sampling.beams.is_none()).then_some(sampling.seed);
    let decides = SamplingParams { seed: drawn.unwrap_or(0), max_draft_tokens: 0, ..sampling.clone() };
    request.sampling = Arc::new(sampling);
    let ReplicaRequest { tenant, cache_salt, prompt, media, adapter, continuations, .. } = &request;
    let stop = &text.stop;
    let content = format!(
        "{tenant:?} {cache_salt:?} {prompt:?} {media:?} {adapter:?} {continuations:?} {decides:?} {stop:?}"
    );
    (request, text, content)
}

#[test]
fn requests_of_several_tenants_get_their_own_answers() {
    let mut rng = Rng::with_seed(1);
    let cache = ResponseCache::new(1 << 20, None, None);
    let mut values: HashMap<String, u32> = HashMap::new();
    let mut uses = [0_u32; CacheUse::ALL.len()];
    let mut running: VecDeque<(Box<dyn Generation>, u32)> = VecDeque::new();
    let mut last = random_request(&mut rng);
    for _ in 0..100_000 {
        // Two of the same in a row are generated once.
        last = if rng.bool() { random_request(&mut rng) } else { last };
        let (request, text, content) = last.clone();
        let n_values = values.len() as u32;
        let value = *values.entry(content).or_insert(n_values);
        let sharing = Sharing {
            policy: CachePolicy::Use,
            is_deterministic: true,
            text: Some(&text),
            fingerprint: None,
        };
        let key = key_of(ModelInstance(0), &request, sharing).expect("a key");
        let n = request.n_continuations();
        let (generation, cache_use) = answer(&cache, &key, n, || starting(script(value, n, 2, &mut rng)));
        uses[cache_use as usize] += 1;
        running.push_back((generation, value));
        let n_left = rng.usize(..4);
        while running.len() > n_left {
            let (mut generation, value) = running.pop_front().expect("not empty");
            let first = next(&mut generation);
            assert_eq!(first, Some(ReplicaEvent::Prompt { cached_tokens: value, logprobs: Vec::new() }));
            while next(&mut generation).is_some() {}
        }
    }
    let [hits, similar, coalesced, misses] = uses;
    assert!(hits.min(coalesced).min(misses) > 1_000 && similar == 0, "{uses:?}");
    let stats = cache.stats().expect("a cache");
    assert!(stats.n_bytes <= 1 << 20, "{stats:?}");
    drop(running);
    assert_eq!(kept(&cache).bound.total_bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn another_model_has_another_key_and_an_unknown_constraint_none() {
    #[derive(Debug)]
    struct Unknown;
    impl throng_core::constraint::TokenConstraint for Unknown {
        fn mask(
            &self,
            _: &[u32],
            _: &mut throng_core::constraint::TokenMask,
        ) -> Result<(), throng_core::constraint::ConstraintError> {
            Ok(())
        }
    }
    let (mut request, ..) = random_request(&mut Rng::with_seed(1));
    let key = |request: &ReplicaRequest, model| CacheKey::new(ModelInstance(model), request, None);
    assert_ne!(key(&request, 0), key(&request, 1));
    request.constraint = Some(OutputForm { compiled: Arc::new(Unknown), source: None });
    assert_eq!(key(&request, 0), None);
    request.constraint = None;
    request.continuations = Continuations::Resumed(Vec::new());
    assert_eq!(key(&request, 0), None);
}

/// Events that a reader has read, by continuation, and its end.
#[derive(Debug, Default)]
struct Read {
    tokens: [Vec<u32>; 2],
    ends: [Option<FinishReason>; 2],
    has_failed: bool,
}

impl Read {
    fn take(&mut self, event: ReplicaEvent) {
        match event {
            ReplicaEvent::Token { index, report } => {
                assert_eq!(self.ends[index as usize], None);
                self.tokens[index as usize].push(report.chosen.token);
            }
            ReplicaEvent::Finished { index, reason, timing } => {
                assert!(timing.n_output as usize >= self.tokens[index as usize].len());
                assert_eq!(self.ends[index as usize].replace(reason), None);
            }
            ReplicaEvent::Failed { .. } => self.has_failed = true,
            ReplicaEvent::Prompt { .. } => {}
        }
    }
}

/// Readers join, read at their own pace, leave, and need no more of a continuation, at random. Readers that
/// stay read everything.
#[test]
fn readers_of_one_generation_do_not_disturb_each_other() {
    for seed in 0..2_000 {
        let mut rng = Rng::with_seed(seed);
        // A small one keeps nothing to join, so that slow readers hold fast ones back.
        let cache = ResponseCache::new(if rng.bool() { 1 << 20 } else { 8 << 10 }, None, None);
        let n_tokens = rng.u32(1..200);
        let fails = rng.u8(..4) == 0;
        let (request, text, _) = random_request(&mut rng);
        let request = ReplicaRequest { continuations: Continuations::New { n: 2 }, ..request };
        let sharing = Sharing {
            policy: CachePolicy::Use,
            is_deterministic: true,
            text: Some(&text),
            fingerprint: None,
        };
        let key = key_of(ModelInstance(0), &request, sharing).expect("a key");
        let mut readers: Vec<(Box<dyn Generation>, Read, [bool; 2])> = Vec::new();
        let mut n_new = rng.usize(1..6);
        let mut cx = Context::from_waker(Waker::noop());
        while n_new > 0 || !readers.is_empty() {
            if n_new > 0 && (readers.is_empty() || rng.u8(..20) == 0) {
                n_new -= 1;
                let script = script(5, 2, n_tokens, &mut rng);
                let script = if fails { script.failing(n_tokens as usize) } else { script };
                let (generation, _) = answer(&cache, &key, 2, || starting(script));
                readers.push((generation, Read::default(), [false; 2]));
            }
            let at = rng.usize(..readers.len());
            let (generation, read, aborted) = &mut readers[at];
            match rng.u8(..100) {
                0 => drop(readers.swap_remove(at)),
                1 => {
                    let index = rng.usize(..2);
                    aborted[index] |= read.ends[index].is_none();
                    generation.abort_continuation(index as u32);
                }
                _ => match generation.poll_next_unpin(&mut cx) {
                    Poll::Pending => {}
                    Poll::Ready(Some(event)) => read.take(event),
                    Poll::Ready(None) => {
                        let whole = |index: u32| -> Vec<u32> {
                            (0..n_tokens).map(|t| 5 ^ (t << 8) ^ index).collect()
                        };
                        for (index, is_aborted) in aborted.iter().enumerate() {
                            let expected = whole(index as u32);
                            assert!(expected.starts_with(&read.tokens[index]), "seed {seed}");
                            let is_whole = read.tokens[index] == expected;
                            assert!(is_whole || fails || *is_aborted, "seed {seed}: {read:?} of {n_tokens}");
                            assert!(read.ends[index].is_some() || fails, "seed {seed}: {read:?}");
                        }
                        readers.swap_remove(at);
                    }
                },
            }
        }
        let kept = kept(&cache);
        assert_eq!(kept.bound.total_bytes.load(Ordering::Relaxed), 0, "seed {seed}");
        if fails {
            assert_eq!(kept.answers.len(), 0, "seed {seed}: a failure was kept");
        }
        if let Some(answer) = kept.answers.get(&key.answer) {
            assert_eq!(answer.events.len(), 3 + 2 * n_tokens as usize, "seed {seed}: a part was kept");
        }
    }
}

#[test]
fn an_answer_that_a_stop_string_ended_is_whole_and_one_that_nobody_reads_is_not() {
    let mut rng = Rng::with_seed(3);
    let (request, text, _) = random_request(&mut rng);
    let sharing =
        Sharing { policy: CachePolicy::Use, is_deterministic: true, text: Some(&text), fingerprint: None };
    for stops in [true, false] {
        let cache = ResponseCache::new(1 << 20, None, None);
        let key = key_of(ModelInstance(0), &request, sharing).expect("a key");
        let (mut generation, _) = answer(&cache, &key, 1, || starting(script(1, 1, 9, &mut rng)));
        for _ in 0..3 {
            next(&mut generation).expect("the prompt and two tokens");
        }
        if stops {
            generation.stop_continuation(0);
        } else {
            generation.abort_continuation(0);
        }
        let end = next(&mut generation);
        assert!(matches!(end, Some(ReplicaEvent::Finished { reason: FinishReason::Abort, .. })), "{end:?}");
        assert_eq!(next(&mut generation), None);
        assert_eq!(kept(&cache).answers.len(), usize::from(stops));
    }
}

#[test]
fn a_refusal_is_told_to_all_and_nothing_is_kept_of_it() {
    let cache = ResponseCache::new(1 << 20, None, None);
    let (request, text, _) = random_request(&mut Rng::with_seed(3));
    let sharing =
        Sharing { policy: CachePolicy::Use, is_deterministic: true, text: Some(&text), fingerprint: None };
    let key = key_of(ModelInstance(0), &request, sharing).expect("a key");
    let (tell, told) = tokio::sync::oneshot::channel::<ReplicaError>();
    let start = || async move { Err(told.await.expect("told")) }.boxed();
    let Found::Begun(shared, begun) = kept(&cache).find(&key, CachePolicy::Use, start, 1) else {
        panic!("the first one begins");
    };
    let Found::Joined(joined, id, _) = kept(&cache).find(&key, CachePolicy::Use, || panic!("begun"), 1)
    else {
        panic!("the second one joins");
    };
    let reader = |shared, id| Reader::new(shared, id, 1, begun, kept(&cache).clone(), key.answer.clone());
    let (mut first, mut second) = (reader(shared, 0).started().boxed(), reader(joined, id).started().boxed());
    assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
    let error =
        ReplicaError { kind: ReplicaErrorKind::Draining, retryable: true, message: "full".to_owned() };
    tell.send(error.clone()).expect("somebody waits");
    assert_eq!(second.now_or_never().expect("told").expect_err("refused"), error);
    assert_eq!(first.now_or_never().expect("told").expect_err("refused"), error);
    let start = || starting(script(1, 1, 1, &mut Rng::with_seed(1)));
    assert!(matches!(kept(&cache).find(&key, CachePolicy::Use, start, 1), Found::Begun(..)));
}
