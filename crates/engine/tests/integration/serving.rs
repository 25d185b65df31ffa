//! What many clients at once get is what each would get alone.

use crate::gate::{Answer, CAPACITY, Gate, Pass, random_request, request, start, stop};
use throng_core::request::{FinishReason, Request};
use throng_core::scheduling::admission::Refusal;
use throng_core::scheduling::batch::SequenceError;
use throng_core::scheduling::scheduler::{SchedulerConfig, SpeculationMethod};
use throng_engine::{EngineConfig, EngineFailure, SubmitError};

#[test]
fn concurrent_requests_equal_the_reference() {
    let engine = start(EngineConfig::default(), &Gate::open());
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let engine = engine.clone();
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                for _ in 0..40 {
                    let requests: Vec<Request> =
                        (0..rng.usize(1..5)).map(|_| random_request(&engine, &mut rng)).collect();
                    let streams: Vec<_> =
                        requests.iter().map(|r| engine.submit(r.clone()).expect("there is room")).collect();
                    for (request, stream) in requests.iter().zip(streams) {
                        Answer::read(request, stream).check(request);
                    }
                }
            });
        }
    });
    let stats = stop(&engine);
    assert!(stats.scheduler.counters.cache_hit_tokens > 0, "nothing was shared");
    assert_eq!(stats.failures.requests, 0);
}

#[tokio::test]
async fn a_stream_can_be_awaited() {
    let engine = start(EngineConfig::default(), &Gate::open());
    let request = request(&engine, &[1, 2, 3], 5);
    let mut stream = engine.submit(request.clone()).expect("there is room");
    let mut answer = Answer::of(&request);
    while let Some(event) = stream.next().await {
        answer.note(event);
    }
    answer.check(&request);
    assert_eq!(answer.n_events, 1 + 5 + 1);
    assert_eq!(stream.next().await, None);
}

#[test]
fn what_cannot_run_is_refused_at_once() {
    // The gate stays closed: nothing here waits for a step.
    let engine = start(EngineConfig::default(), &Gate::closed());
    let refusal = |request| engine.submit(request).expect_err("it is refused");
    assert_eq!(refusal(request(&engine, &[], 1)), SubmitError::Refused(Refusal::Empty));
    assert_eq!(
        refusal(request(&engine, &[1; 400], 1)),
        SubmitError::Refused(Refusal::TooLong { n_tokens: 401, limit: 400 })
    );
    assert_eq!(
        refusal(request(&engine, &[50], 1)),
        SubmitError::Refused(Refusal::InvalidToken { token: 50, vocabulary_size: 50 })
    );
    assert_eq!(engine.capacity(), CAPACITY);
}

#[test]
fn a_full_queue_says_so_while_a_step_is_blocked() {
    let gate = Gate::closed();
    let scheduler =
        SchedulerConfig { max_queued_requests: 3, max_batch_sequences: 1, ..SchedulerConfig::default() };
    let engine = start(EngineConfig { scheduler, ..EngineConfig::default() }, &gate);
    let requests: Vec<Request> = (0..4).map(|i| request(&engine, &[i; 10], 3)).collect();
    let submit = |i: usize| engine.submit(requests[i].clone());
    let mut streams = vec![submit(0).expect("there is room")];
    gate.wait_for_step(1);
    streams.extend((1..4).map(|i| submit(i).expect("there is room")));
    let refused = engine.submit(request(&engine, &[1], 1)).expect_err("the queue is full");
    assert_eq!(refused, SubmitError::Refused(Refusal::QueueFull { n_requests: 3, n_tokens: 30 }));
    assert_eq!(gate.n_steps(), 1);
    gate.let_all_pass();
    for (request, stream) in requests.iter().zip(streams) {
        Answer::read(request, stream).check(request);
    }
    engine.submit(request(&engine, &[1], 1)).expect("there is room again");
}

#[test]
fn a_row_that_fails_takes_nobody_with_it() {
    let gate = Gate::closed();
    let engine = start(EngineConfig::default(), &gate);
    let requests: Vec<Request> = (0..6).map(|i| request(&engine, &[i; 20], 10)).collect();
    gate.fail_row_of(requests[3].id);
    let streams: Vec<_> = requests.iter().map(|r| engine.submit(r.clone()).expect("there is room")).collect();
    gate.let_all_pass();
    for (request, stream) in requests.iter().zip(streams) {
        let answer = Answer::read(request, stream);
        if request.id == requests[3].id {
            assert_eq!(answer.failure, Some(EngineFailure::SequenceFailed(SequenceError::SamplerPanicked)));
        } else {
            answer.check(request);
        }
    }
    let stats = stop(&engine);
    assert_eq!((stats.failures.requests, stats.executor_restarts), (1, 0));
}

#[test]
fn a_continuation_can_be_ended_alone() {
    let gate = Gate::closed();
    let engine = start(EngineConfig::default(), &gate);
    let request = Request { n: 3, ..request(&engine, &[7; 20], 30) };
    let mut stream = engine.submit(request.clone()).expect("there is room");
    for _ in 0..3 {
        gate.let_pass(Pass::Run);
    }
    // Step 4 is in flight, with all three.
    assert_eq!(gate.wait_for_step(4).len(), 3);
    stream.abort_sequence(1);
    gate.let_all_pass();
    let mut answer = Answer::of(&request);
    while let Some(event) = stream.blocking_next() {
        answer.note(event);
    }
    let (tokens, reason) = std::mem::take(&mut answer.sequences[1]);
    assert_eq!(reason, Some(FinishReason::Abort));
    assert_eq!(tokens.len(), 2, "it got tokens in steps 2 and 3");
    let whole = throng_testkit::paper_executor::paper_answer(&request, &CAPACITY);
    answer.sequences[1] = (crate::gate::reports(&whole.sequences[1].0), Some(whole.sequences[1].1));
    answer.check(&request);
}

#[test]
fn an_id_in_use_is_refused() {
    let gate = Gate::closed();
    let engine = start(EngineConfig::default(), &gate);
    let first = request(&engine, &[1], 2);
    let again = Request { id: first.id, ..request(&engine, &[2], 2) };
    let (a, b) = (engine.submit(first.clone()), engine.submit(again.clone()));
    gate.let_all_pass();
    Answer::read(&first, a.expect("there is room")).check(&first);
    let answer = Answer::read(&again, b.expect("there is room"));
    assert_eq!(answer.failure, Some(EngineFailure::DuplicateId));
}

#[test]
fn the_step_log_keeps_the_latest_steps() {
    let gate = Gate::open();
    // Drafts would depend on how long steps take.
    let scheduler =
        SchedulerConfig { speculation: SpeculationMethod::None, ..EngineConfig::default().scheduler };
    let engine = start(EngineConfig { max_logged_steps: 4, scheduler, ..EngineConfig::default() }, &gate);
    let request = request(&engine, &[1; 100], 10);
    Answer::read(&request, engine.submit(request.clone()).expect("there is room")).check(&request);
    let log = engine.step_log();
    let n_steps = gate.n_steps() as u64;
    // 100 prompt tokens under a budget of 64 a step, then 9 single tokens.
    assert_eq!(n_steps, 2 + 9);
    assert_eq!(log.iter().map(|step| step.number).collect::<Vec<_>>(), [7, 8, 9, 10]);
    assert!(log.iter().all(|step| step.n_tokens == 1 && step.n_sampled == 1 && step.succeeded));
    assert!(log.iter().all(|step| step.planning.0 > 0 && step.executing.0 > 0 && step.choosing.0 == 0));
    assert!(log.iter().all(|step| step.planning.max(step.executing) <= step.duration));
    let stats = stop(&engine);
    assert_eq!(stats.iteration_tokens.sum, 109);
    assert_eq!(stats.scheduler.counters.prompt_tokens, 100);
    assert_eq!(stats.scheduler.counters.output_tokens, 10);
}
