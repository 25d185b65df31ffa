//! A drain finishes what is there, up to a limit, and takes nothing new.

use std::time::Duration;

use crate::gate::{Answer, CAPACITY, Gate, Pass, request, start};
use throng_core::request::Request;
use throng_core::scheduling::batch::{ScheduledBatch, StepOutput};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_engine::{Engine, EngineConfig, EngineFailure, EngineState, StreamEvent, SubmitError};
use throng_testkit::paper_executor::PaperExecutor;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_finishes_what_is_there() {
    let gate = Gate::closed();
    let engine = start(EngineConfig::default(), &gate);
    let requests: Vec<Request> = (0..40).map(|i| request(&engine, &[i; 30], 10)).collect();
    let streams: Vec<_> = requests.iter().map(|r| engine.submit(r.clone()).expect("there is room")).collect();
    let drained = tokio::spawn({
        let engine = engine.clone();
        async move { engine.drain(Duration::from_secs(3600)).await }
    });
    while engine.state() == EngineState::Running {
        tokio::task::yield_now().await;
    }
    let late = request(&engine, &[1], 1);
    assert_eq!(engine.submit(late).expect_err("it takes nothing new"), SubmitError::Draining);
    assert!(engine.is_healthy());
    gate.let_all_pass();
    drained.await.expect("it drains");
    assert_eq!(engine.state(), EngineState::Stopped);
    tokio::task::spawn_blocking(move || {
        for (request, stream) in requests.iter().zip(streams) {
            Answer::read(request, stream).check(request);
        }
    })
    .await
    .expect("all are content");
    engine.drain(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_has_a_limit_even_when_a_step_hangs() {
    let gate = Gate::closed();
    let engine = start(EngineConfig::default(), &gate);
    let request = request(&engine, &[1; 30], 10);
    let stream = engine.submit(request.clone()).expect("there is room");
    gate.let_pass(Pass::Hang);
    gate.wait_for_step(1);
    engine.drain(Duration::from_millis(1)).await;
    assert_eq!(engine.state(), EngineState::Stopped);
    let answer = tokio::task::spawn_blocking(move || Answer::read(&request, stream)).await.expect("it ends");
    assert_eq!(answer.failure, Some(EngineFailure::Stopped));
    gate.release_hung();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_has_a_limit_even_when_an_executor_cannot_be_made() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let mut n_made = 0;
    let engine = Engine::start(EngineConfig::default(), move || {
        n_made += 1;
        if n_made > 1 {
            let _ = wait.recv();
        }
        Ok(Box::new(Failing(PaperExecutor::new(CAPACITY))) as Box<dyn Executor>)
    })
    .expect("it starts");
    let requests = [1, 2].map(|i| request(&engine, &[i; 30], 10));
    let mut stream = engine.submit(requests[0].clone()).expect("there is room");
    let failed = EngineFailure::StepFailed(ExecutorError::Device("as the test wants it".into()));
    assert_eq!(stream.next().await, Some(StreamEvent::Failed { error: failed }));
    // The engine has no executor now; what comes meanwhile waits, can be left, and does not hold up a drain.
    let mut stream = engine.submit(requests[1].clone()).expect("there is room");
    drop(engine.submit(request(&engine, &[3], 1)).expect("there is room"));
    while engine.stats().scheduler.queued_requests > 1 {
        tokio::task::yield_now().await;
    }
    engine.drain(Duration::from_millis(1)).await;
    assert_eq!(engine.state(), EngineState::Stopped);
    assert_eq!(stream.next().await, Some(StreamEvent::Failed { error: EngineFailure::Stopped }));
    drop(go);
}

/// Fails every step.
struct Failing(PaperExecutor);

impl Executor for Failing {
    fn capacity(&self) -> ExecutorCapacity {
        self.0.capacity()
    }

    fn collect(&mut self, _: &ScheduledBatch, _: &mut StepOutput) -> Result<(), ExecutorError> {
        Err(ExecutorError::Device("as the test wants it".into()))
    }
}

#[test]
fn shutdown_fails_what_is_not_finished() {
    let gate = Gate::closed();
    let engine = start(EngineConfig::default(), &gate);
    let requests = [request(&engine, &[1; 30], 10), request(&engine, &[2; 30], 10)];
    let streams = requests.clone().map(|r| engine.submit(r).expect("there is room"));
    gate.wait_for_step(1);
    engine.shutdown();
    for (request, stream) in requests.iter().zip(streams) {
        assert_eq!(Answer::read(request, stream).failure, Some(EngineFailure::Stopped));
    }
    gate.let_all_pass();
    gate.wait_for_drops(1);
}

#[test]
fn streams_outlive_the_last_handle() {
    let gate = Gate::closed();
    let engine = start(EngineConfig::default(), &gate);
    let request = request(&engine, &[1; 30], 10);
    let stream = engine.submit(request.clone()).expect("there is room");
    drop(engine);
    gate.let_all_pass();
    Answer::read(&request, stream).check(&request);
    gate.wait_for_drops(1);
}
