//! Steps that settle several tokens of a sequence: what streams bring is the same, and a reader that is
//! behind is paused before its buffer is full.

use crate::gate::{Answer, CAPACITY, random_request, request, stop};
use throng_core::request::{Request, SamplingParams};
use throng_core::scheduling::executor::Executor;
use throng_core::scheduling::scheduler::SchedulerConfig;
use throng_engine::{Engine, EngineConfig, EngineHandle};
use throng_testkit::paper_executor::PaperExecutor;

fn start(max_draft_tokens: u32) -> EngineHandle {
    let scheduler = SchedulerConfig { max_draft_tokens, ..SchedulerConfig::default() };
    let config = EngineConfig { scheduler, max_buffered_events: 2, ..EngineConfig::default() };
    let make = || {
        let rng = fastrand::Rng::with_seed(3);
        let executor = PaperExecutor::new(CAPACITY).with_drafts(rng, 32);
        Ok(Box::new(executor) as Box<dyn Executor>)
    };
    Engine::start(config, make).expect("it starts")
}

#[test]
fn streams_bring_the_same() {
    let engine = start(8);
    let mut rng = fastrand::Rng::with_seed(1);
    let requests: Vec<Request> = (0..60).map(|_| random_request(&engine, &mut rng)).collect();
    let streams: Vec<_> = requests.iter().map(|r| engine.submit(r.clone()).expect("there is room")).collect();
    for (request, stream) in requests.iter().zip(streams) {
        Answer::read(request, stream).check(request);
    }
    let stats = stop(&engine);
    let counters = stats.scheduler.counters;
    assert!(counters.accepted_draft_tokens > 100, "{counters:?}");
    assert!(counters.accepted_draft_tokens < counters.draft_tokens, "{counters:?}");
    assert_eq!((stats.scheduler.used_blocks, stats.failures.requests), (0, 0));
}

#[test]
fn a_step_of_many_tokens_fits_into_the_buffer_of_a_slow_reader() {
    let engine = start(32);
    let sampling = SamplingParams { max_tokens: 200, temperature: 0.0, ..SamplingParams::default() };
    let slow = Request { n: 3, sampling: sampling.into(), ..request(&engine, &[1; 40], 0) };
    let stream = engine.submit(slow.clone()).expect("there is room");
    // Served until all of its continuations are paused: each had the step that filled the buffer.
    loop {
        let other = request(&engine, &[4, 5], 3);
        Answer::read(&other, engine.submit(other.clone()).expect("there is room")).check(&other);
        let stats = engine.stats().scheduler;
        if stats.paused == 3 && stats.running == 0 {
            break;
        }
    }
    Answer::read(&slow, stream).check(&slow);
    assert_eq!(stop(&engine).failures.requests, 0);
}
