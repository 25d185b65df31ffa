//! Steps fail and panic at random under a crowd: whoever is not told of a failure gets everything, to the
//! bit.

use crate::gate::{Answer, Gate, Pass, random_request, start, stop};
use throng_engine::{EngineConfig, EngineFailure, EngineState};

const SEED: u64 = 20;

#[test]
fn steps_that_go_wrong_spoil_nothing_else() {
    println!("seed {SEED}");
    let (gate, mut rng) = (Gate::closed(), fastrand::Rng::with_seed(SEED));
    for _ in 0..600 {
        gate.let_pass(match rng.u32(0..200) {
            0 => Pass::Panic,
            1..10 => Pass::Fail,
            _ => Pass::Run,
        });
    }
    gate.let_all_pass();
    let engine = start(EngineConfig::default(), &gate);
    let (mut n_whole, mut n_failed) = (0, 0);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..6)
            .map(|seed| {
                let engine = engine.clone();
                scope
                    .spawn(move || (0..60).map(|round| ask(&engine, seed * 1000 + round)).collect::<Vec<_>>())
            })
            .collect();
        for client in clients {
            for whole in client.join().expect("the client is content") {
                *(if whole { &mut n_whole } else { &mut n_failed }) += 1;
            }
        }
    });
    assert!(n_whole > 100 && n_failed > 10, "{n_whole} whole, {n_failed} failed: not much of a chaos");
    assert_eq!(engine.state(), EngineState::Running);
    let stats = stop(&engine);
    let failures = stats.failures;
    assert_eq!(stats.executor_restarts, failures.failed_steps + failures.panicked_steps);
    assert_eq!(failures.requests, n_failed);
    let scheduler = stats.scheduler;
    assert_eq!((scheduler.used_blocks, scheduler.queued_requests, scheduler.queued_tokens), (0, 0, 0));
}

/// Asks for something; whether everything came.
fn ask(engine: &throng_engine::EngineHandle, seed: u64) -> bool {
    let request = random_request(engine, &mut fastrand::Rng::with_seed(seed));
    let answer = Answer::read(&request, engine.submit(request.clone()).expect("there is room"));
    match answer.failure {
        None => answer.check(&request),
        Some(EngineFailure::StepFailed(_) | EngineFailure::StepPanicked) => answer.check_beginning(&request),
        Some(failure) => panic!("{failure}"),
    }
    answer.failure.is_none()
}
