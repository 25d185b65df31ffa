//! A log that hangs holds up the engine thread; a drain must end all the same. A program of its own: the log
//! is global.

#[path = "integration/gate/mod.rs"]
mod gate;
mod log;

use std::sync::{Condvar, Mutex, MutexGuard};

use gate::{Answer, Gate, Pass, request, start, stop};
use log::OnLine;
use throng_engine::{EngineConfig, EngineFailure, EngineState};

#[derive(PartialEq)]
enum Log {
    Quiet,
    HoldsUpTheEngine,
    Open,
}

static LOG: Mutex<Log> = Mutex::new(Log::Quiet);
static CHANGED: Condvar = Condvar::new();

/// Brings the log into a state, unless it is open.
fn become_state(state: Log) -> MutexGuard<'static, Log> {
    let mut log = LOG.lock().expect("nobody panics with the lock");
    if *log != Log::Open {
        *log = state;
    }
    CHANGED.notify_all();
    log
}

fn wait_until(log: MutexGuard<'_, Log>, state: &Log) {
    drop(CHANGED.wait_while(log, |log| log != state));
}

/// Holds up whoever writes to the log until it is opened.
fn hold_up() {
    wait_until(become_state(Log::HoldsUpTheEngine), &Log::Open);
}

#[test]
fn a_drain_ends_although_the_engine_thread_hangs() {
    tracing::subscriber::set_global_default(OnLine(hold_up)).expect("the first one");
    let gate = Gate::closed();
    let engine = start(EngineConfig::default(), &gate);
    let request = request(&engine, &[1; 20], 5);
    let stream = engine.submit(request.clone()).expect("there is room");
    gate.let_pass(Pass::Fail);
    // The failed step is being logged.
    wait_until(LOG.lock().expect("nobody panics with the lock"), &Log::HoldsUpTheEngine);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(engine.drain(std::time::Duration::ZERO));
    assert_eq!(engine.state(), EngineState::Draining);

    drop(become_state(Log::Open));
    gate.let_all_pass();
    stop(&engine);
    assert_eq!(engine.state(), EngineState::Stopped);
    let failure = Answer::read(&request, stream).failure.expect("its step failed");
    assert!(matches!(failure, EngineFailure::StepFailed(_)));
}
