//! A log that panics may end the engine; it must not hide that it did. A program of its own: the log is
//! global.

#[path = "integration/gate/mod.rs"]
mod gate;
mod log;

use gate::{Answer, Gate, Pass, request, start, stop};
use log::OnLine;
use throng_engine::{EngineConfig, EngineFailure, EngineState, SubmitError};

#[test]
fn an_engine_whose_log_panics_says_that_it_is_dead() {
    tracing::subscriber::set_global_default(OnLine(|| panic!("the log is full"))).expect("the first one");
    let gate = Gate::closed();
    let engine = start(EngineConfig::default(), &gate);
    let requests = [1, 2].map(|i| request(&engine, &[i; 20], 5));
    let streams = requests.each_ref().map(|r| engine.submit(r.clone()).expect("there is room"));
    gate.let_pass(Pass::Fail);
    for (request, stream) in requests.iter().zip(streams) {
        assert_eq!(Answer::read(request, stream).failure, Some(EngineFailure::Unhealthy));
    }
    assert_eq!(engine.state(), EngineState::Unhealthy);
    assert!(!engine.is_healthy() && engine.is_lost());
    assert_eq!(engine.submit(requests[0].clone()).expect_err("it is dead"), SubmitError::Unhealthy);
    // A drain does not wait for a thread that is gone.
    stop(&engine);
}
