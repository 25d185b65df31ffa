//! A reader that falls behind has its request paused and harms nobody; when it catches up, nothing is
//! missing.

use crate::gate::{Answer, Gate, random_request, request, start, stop};
use throng_core::request::{Request, SamplingParams, TenantId};
use throng_core::scheduling::scheduler::SchedulerStats;
use throng_engine::{EngineConfig, EngineFailure, EngineHandle, TokenStream};

/// Eight events a continuation are buffered.
fn small() -> EngineConfig {
    EngineConfig { max_buffered_events: 2, ..EngineConfig::default() }
}

/// Serves others until the engine's numbers are as wanted.
fn serve_until(engine: &EngineHandle, wanted: impl Fn(&SchedulerStats) -> bool) {
    loop {
        let other = request(engine, &[4, 5], 3);
        Answer::read(&other, engine.submit(other.clone()).expect("there is room")).check(&other);
        if wanted(&engine.stats().scheduler) {
            return;
        }
    }
}

fn submit(engine: &EngineHandle, request: &Request) -> TokenStream {
    engine.submit(request.clone()).expect("there is room")
}

#[test]
fn a_paused_request_goes_on_with_the_same_bits() {
    let engine = start(small(), &Gate::open());
    let sampling =
        SamplingParams { max_tokens: 200, logprobs: Some(2), seed: 9, ..SamplingParams::default() };
    let slow = Request { n: 3, sampling: sampling.into(), ..request(&engine, &[1; 40], 0) };
    let stream = submit(&engine, &slow);
    // All of them pause, and hold neither rows nor blocks.
    serve_until(&engine, |stats| stats.paused == 3 && stats.running == 0 && stats.used_blocks == 0);
    let answer = Answer::read(&slow, stream);
    answer.check(&slow);
    let stats = stop(&engine);
    assert_eq!((stats.scheduler.paused, stats.scheduler.used_blocks, stats.failures.requests), (0, 0, 0));
}

#[test]
fn readers_that_take_turns_get_what_they_would_get_alone() {
    let engine = start(small(), &Gate::open());
    std::thread::scope(|scope| {
        for seed in 0..6 {
            let engine = &engine;
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                for _ in 0..20 {
                    let requests: Vec<Request> = (0..5).map(|_| random_request(engine, &mut rng)).collect();
                    let mut readers: Vec<_> =
                        requests.iter().map(|r| (r, Answer::of(r), submit(engine, r))).collect();
                    while !readers.is_empty() {
                        let i = rng.usize(0..readers.len());
                        for _ in 0..rng.usize(1..30) {
                            let (request, answer, stream) = &mut readers[i];
                            let Some(event) = stream.blocking_next() else {
                                answer.check(request);
                                readers.swap_remove(i);
                                break;
                            };
                            answer.note(event);
                        }
                    }
                }
            });
        }
    });
    let stats = stop(&engine);
    assert_eq!((stats.scheduler.paused, stats.scheduler.used_blocks, stats.failures.requests), (0, 0, 0));
}

#[test]
fn a_paused_request_can_be_left() {
    let engine = start(small(), &Gate::open());
    let slow = request(&engine, &[1, 2], 300);
    let stream = submit(&engine, &slow);
    serve_until(&engine, |stats| stats.paused == 1);
    drop(stream);
    serve_until(&engine, |stats| stats.paused == 0);
    assert_eq!(stop(&engine).scheduler.used_blocks, 0);
}

#[test]
fn no_request_is_paused_for_ever() {
    let config = EngineConfig { pause_timeout_ms: 1, ..small() };
    let engine = start(config, &Gate::open());
    let slow = request(&engine, &[1, 2], 300);
    let stream = submit(&engine, &slow);
    while engine.stats().failures.requests == 0 {
        let other = request(&engine, &[4], 1);
        Answer::read(&other, submit(&engine, &other)).check(&other);
    }
    let answer = Answer::read(&slow, stream);
    assert_eq!(answer.failure, Some(EngineFailure::SlowReader { n_events: 8 }));
    assert_eq!(answer.n_events, 9, "what was made before is not lost");
    answer.check_beginning(&slow);
}

#[test]
fn log_probabilities_count_as_well_as_events() {
    let config = EngineConfig { pause_timeout_ms: 1, ..small() };
    let engine = start(config, &Gate::open());
    let sampling = SamplingParams { max_tokens: 300, logprobs: Some(20), ..SamplingParams::default() };
    let slow = Request { sampling: sampling.into(), ..request(&engine, &[1, 2], 0) };
    let stream = submit(&engine, &slow);
    while engine.stats().failures.requests == 0 {
        let other = request(&engine, &[4], 1);
        Answer::read(&other, submit(&engine, &other)).check(&other);
    }
    let answer = Answer::read(&slow, stream);
    // The prompt weighs 1, a token with 20 log-probabilities 3: the mark of 8 is passed with the third.
    assert_eq!(answer.failure, Some(EngineFailure::SlowReader { n_events: 10 }));
    assert_eq!(answer.sequences[0].0.len(), 3);
}

#[test]
fn of_too_many_paused_requests_the_tenant_with_the_most_loses_one() {
    let config = EngineConfig { max_paused_requests: 2, ..small() };
    let engine = start(config, &Gate::open());
    let of = |tenant: &str| Request { tenant: TenantId(tenant.into()), ..request(&engine, &[1, 2], 100) };
    let requests = [of("one"), of("many"), of("many")];
    let mut streams = Vec::new();
    for (i, request) in requests.iter().enumerate() {
        streams.push(submit(&engine, request));
        serve_until(&engine, |stats| stats.paused == (i + 1).min(2) && stats.running == 0);
    }
    while engine.stats().failures.requests == 0 {
        serve_until(&engine, |_| true);
    }
    let answers: Vec<Answer> =
        requests.iter().zip(streams).map(|(request, stream)| Answer::read(request, stream)).collect();
    assert!(matches!(answers[1].failure, Some(EngineFailure::SlowReader { .. })));
    answers[0].check(&requests[0]);
    answers[2].check(&requests[2]);
}
