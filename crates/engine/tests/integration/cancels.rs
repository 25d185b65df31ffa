//! A thousand clients leave at random points: what was computed for them stops within one step, their blocks
//! come back, and nobody else notices.

use crate::gate::{Answer, Gate, random_request, start, stop};
use throng_core::request::RequestId;
use throng_core::scheduling::scheduler::SchedulerConfig;
use throng_engine::{EngineConfig, EngineHandle};

const N_CLIENTS: u64 = 10;
const CANCELS_PER_CLIENT: usize = 100;

/// A request that was left, and how many steps had begun by then.
struct Cancelled {
    request: RequestId,
    n_steps_begun: usize,
}

fn run_client(engine: &EngineHandle, gate: &Gate, seed: u64) -> Vec<Cancelled> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut cancelled = Vec::new();
    while cancelled.len() < CANCELS_PER_CLIENT {
        let (leaver, stayer) = (random_request(engine, &mut rng), random_request(engine, &mut rng));
        let mut leaving = engine.submit(leaver.clone()).expect("there is room");
        let staying = engine.submit(stayer.clone()).expect("there is room");
        let mut answer = Answer::of(&leaver);
        let n_events = rng.usize(0..30);
        let mut ended = false;
        while answer.n_events < n_events && !ended {
            match leaving.blocking_next() {
                Some(event) => answer.note(event),
                None => ended = true,
            }
        }
        drop(leaving);
        if ended {
            answer.check(&leaver);
        } else {
            cancelled.push(Cancelled { request: leaver.id, n_steps_begun: gate.n_steps() });
        }
        Answer::read(&stayer, staying).check(&stayer);
    }
    cancelled
}

#[test]
fn a_thousand_cancels_harm_nobody() {
    let gate = Gate::open();
    let scheduler = SchedulerConfig { max_batch_sequences: 8, ..SchedulerConfig::default() };
    let engine = start(EngineConfig { scheduler, ..EngineConfig::default() }, &gate);
    let cancelled: Vec<Cancelled> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..N_CLIENTS)
            .map(|seed| {
                scope.spawn({
                    let (engine, gate) = (&engine, &gate);
                    move || run_client(engine, gate, seed)
                })
            })
            .collect();
        clients.into_iter().flat_map(|client| client.join().expect("the client is content")).collect()
    });
    assert_eq!(cancelled.len(), 1000);
    let steps = gate.steps();
    for Cancelled { request, n_steps_begun } in cancelled {
        // The next step may have been planned already; no other may know the request.
        let later = steps.iter().skip(n_steps_begun + 1).position(|step| step.contains(&request));
        assert_eq!(later, None, "request {} was computed on after it was cancelled", request.0);
    }
    let stats = stop(&engine).scheduler;
    assert_eq!((stats.running, stats.waiting, stats.used_blocks), (0, 0, 0));
    assert_eq!((stats.queued_requests, stats.queued_tokens), (0, 0));
}
