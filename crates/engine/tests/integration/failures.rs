//! A step that hangs, panics or fails ends its own requests; the engine goes on.

use crate::gate::{Answer, CAPACITY, Gate, Pass, request, start};
use throng_core::request::Request;
use throng_core::scheduling::batch::{ScheduledBatch, StepOutput};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_core::scheduling::scheduler::SchedulerConfig;
use throng_engine::{
    Engine, EngineConfig, EngineError, EngineFailure, EngineHandle, EngineState, SubmitError,
};
use throng_testkit::paper_executor::PaperExecutor;

/// One sequence a step, so that the second request waits while the first one's step goes wrong.
fn one_row(step_timeout_ms: u64, max_abandoned_threads: u32) -> EngineConfig {
    let scheduler = SchedulerConfig { max_batch_sequences: 1, ..SchedulerConfig::default() };
    EngineConfig { scheduler, step_timeout_ms, max_abandoned_threads, ..EngineConfig::default() }
}

#[test]
fn a_step_that_hangs_is_given_up() {
    let gate = Gate::closed();
    let engine = start(one_row(2_000, 2), &gate);
    let requests = [1, 2, 3].map(|i| request(&engine, &[i; 40], 5));
    let streams = [0, 1].map(|i| engine.submit(requests[i].clone()).expect("there is room"));
    gate.let_pass(Pass::Run);
    gate.let_pass(Pass::Hang);
    let [hung, waiting] = streams;
    let answer = Answer::read(&requests[0], hung);
    assert_eq!(answer.failure, Some(EngineFailure::StepTimedOut { timeout_ms: 2_000 }));
    assert_eq!(answer.sequences[0].0.len(), 1, "the step before it is not lost");
    gate.let_all_pass();
    Answer::read(&requests[1], waiting).check(&requests[1]);
    let stats = engine.stats();
    assert_eq!((stats.executor_restarts, stats.abandoned_threads), (1, 1));
    assert_eq!(stats.failures.timed_out_steps, 1);

    // The thread that hung comes back: its late answer is nobody's, and it is not counted any more.
    gate.release_hung();
    gate.wait_for_drops(1);
    let stream = engine.submit(requests[2].clone()).expect("there is room");
    Answer::read(&requests[2], stream).check(&requests[2]);
    assert_eq!(engine.stats().abandoned_threads, 0);
    assert_eq!(engine.state(), EngineState::Running);
}

#[test]
fn too_many_hung_threads_make_it_unhealthy() {
    let gate = Gate::closed();
    let engine = start(one_row(200, 0), &gate);
    let requests = [1, 2].map(|i| request(&engine, &[i; 40], 5));
    let [hung, waiting] = [0, 1].map(|i| engine.submit(requests[i].clone()).expect("there is room"));
    gate.let_pass(Pass::Hang);
    let failure = Answer::read(&requests[0], hung).failure;
    assert_eq!(failure, Some(EngineFailure::StepTimedOut { timeout_ms: 200 }));
    assert_eq!(Answer::read(&requests[1], waiting).failure, Some(EngineFailure::Unhealthy));
    assert!(!engine.is_healthy());
    assert_eq!(engine.submit(requests[0].clone()).expect_err("it takes nothing"), SubmitError::Unhealthy);
    gate.release_hung();
}

fn a_step_that_goes_wrong(pass: Pass, failure: EngineFailure) {
    let gate = Gate::closed();
    let engine = start(one_row(60_000, 0), &gate);
    let shared = [9; 40];
    let requests = [1, 2].map(|_| request(&engine, &shared, 5));
    let [broken, waiting] = [0, 1].map(|i| engine.submit(requests[i].clone()).expect("there is room"));
    gate.let_pass(Pass::Run);
    gate.let_pass(pass);
    assert_eq!(Answer::read(&requests[0], broken).failure, Some(failure));
    // The new executor's cache is empty: a hit on what the old one computed would show.
    gate.let_all_pass();
    Answer::read(&requests[1], waiting).check(&requests[1]);
    let stats = engine.stats();
    assert_eq!((stats.executor_restarts, stats.abandoned_threads, stats.failures.requests), (1, 0, 1));
    assert_eq!(stats.scheduler.counters.cache_hit_tokens, 0);
    assert!(!engine.step_log()[1].succeeded);
}

#[test]
fn a_step_that_panics_ends_its_own_requests() {
    a_step_that_goes_wrong(Pass::Panic, EngineFailure::StepPanicked);
}

#[test]
fn a_step_that_fails_ends_its_own_requests() {
    let reason = ExecutorError::Device("as the test wants it".into());
    a_step_that_goes_wrong(Pass::Fail, EngineFailure::StepFailed(reason));
}

#[test]
fn requests_survive_the_loss_of_processes_until_these_are_many() {
    let gate = Gate::closed();
    let engine = start(one_row(60_000, 0), &gate);
    let requests = [1, 2].map(|i| request(&engine, &[i; 40], 6));
    let streams = [0, 1].map(|i| engine.submit(requests[i].clone()).expect("there is room"));
    let [unlucky, waiting] = streams;
    for _ in 0..3 {
        gate.let_pass(Pass::Run);
        gate.let_pass(Pass::LosePeer);
    }
    gate.let_pass(Pass::LosePeer);
    let answer = Answer::read(&requests[0], unlucky);
    let lost = ExecutorError::PeerLost("as the test wants it".into());
    assert_eq!(answer.failure, Some(EngineFailure::StepFailed(lost)));
    assert!(!answer.sequences[0].0.is_empty(), "what it had before is not lost");
    gate.let_all_pass();
    Answer::read(&requests[1], waiting).check(&requests[1]);
    assert_eq!((engine.stats().executor_restarts, engine.stats().failures.requests), (4, 1));

    let gate = Gate::closed();
    let engine = start(one_row(60_000, 0), &gate);
    let request = request(&engine, &[1; 40], 6);
    let stream = engine.submit(request.clone()).expect("there is room");
    for pass in [Pass::LosePeer, Pass::Run, Pass::Run, Pass::LosePeer] {
        gate.let_pass(pass);
    }
    gate.let_all_pass();
    Answer::read(&request, stream).check(&request);
    assert_eq!((engine.stats().executor_restarts, engine.stats().failures.failed_steps), (2, 2));
}

#[test]
fn losses_of_others_do_not_count_for_a_request() {
    let gate = Gate::open();
    let engine = start(one_row(60_000, 0), &gate);
    for i in 0..6 {
        gate.let_pass(Pass::LosePeer);
        let request = request(&engine, &[i; 40], 6);
        let stream = engine.submit(request.clone()).expect("there is room");
        Answer::read(&request, stream).check(&request);
    }
    assert_eq!((engine.stats().executor_restarts, engine.stats().failures.requests), (6, 0));
}

#[test]
fn what_had_no_share_in_a_lost_step_goes_on() {
    // A budget of one token: one of the two has a share in each step.
    let gate = Gate::closed();
    let scheduler = SchedulerConfig { max_batch_tokens: 1, ..SchedulerConfig::default() };
    let engine = start(EngineConfig { scheduler, ..EngineConfig::default() }, &gate);
    let requests: Vec<Request> = [1, 2].iter().map(|&i| request(&engine, &[i; 3], 4)).collect();
    let streams: Vec<_> = requests.iter().map(|r| engine.submit(r.clone()).expect("there is room")).collect();
    let in_step = gate.wait_for_step(1);
    gate.let_pass(Pass::Panic);
    gate.let_all_pass();
    for (request, stream) in requests.iter().zip(streams) {
        let answer = Answer::read(request, stream);
        match in_step.contains(&request.id) {
            true => assert_eq!(answer.failure, Some(EngineFailure::StepPanicked)),
            false => answer.check(request),
        }
    }
}

#[test]
fn an_executor_that_cannot_be_made_is_an_error() {
    let result =
        Engine::start(EngineConfig::default(), || Err(ExecutorError::OutOfMemory("KV cache".into())));
    assert!(matches!(result, Err(EngineError::Executor(ExecutorError::OutOfMemory(_)))));
    let result =
        Engine::start(EngineConfig::default(), || -> Result<Box<dyn Executor>, _> { panic!("boom") });
    assert!(matches!(result, Err(EngineError::ExecutorPanicked(message)) if message == "boom"));
}

#[test]
fn an_executor_that_cannot_be_replaced_makes_it_unhealthy() {
    let (go, wait) = std::sync::mpsc::channel();
    let mut only = Some(Panicking { paper: PaperExecutor::new(CAPACITY), wait });
    let engine = Engine::start(one_row(60_000, 0), move || {
        let executor = only.take().ok_or(ExecutorError::Device("it is gone".into()))?;
        Ok(Box::new(executor) as Box<dyn Executor>)
    })
    .expect("it starts");
    let requests = [1, 2].map(|i| request(&engine, &[i], 1));
    let [broken, waiting] = requests.each_ref().map(|r| engine.submit(r.clone()).expect("there is room"));
    go.send(()).expect("the step waits");
    assert_eq!(Answer::read(&requests[0], broken).failure, Some(EngineFailure::StepPanicked));
    assert_eq!(Answer::read(&requests[1], waiting).failure, Some(EngineFailure::Unhealthy));
    assert_eq!(engine.state(), EngineState::Unhealthy);
}

/// Panics when told to.
struct Panicking {
    paper: PaperExecutor,
    wait: std::sync::mpsc::Receiver<()>,
}

impl Executor for Panicking {
    fn capacity(&self) -> ExecutorCapacity {
        self.paper.capacity()
    }

    fn collect(&mut self, _: &ScheduledBatch, _: &mut StepOutput) -> Result<(), ExecutorError> {
        let _ = self.wait.recv();
        panic!("as the test wants it")
    }
}

/// What a broken executor does to its thread or to the engine's.
#[derive(Clone, Copy)]
enum Fault {
    /// Panics with something that panics when it is dropped.
    NastyPanic,
    /// Panics when it is asked for its capacity.
    NoCapacity,
}

struct Broken {
    paper: PaperExecutor,
    fault: Option<Fault>,
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("again, as the test wants it")
        }
    }
}

impl Executor for Broken {
    fn capacity(&self) -> ExecutorCapacity {
        assert!(!matches!(self.fault, Some(Fault::NoCapacity)), "as the test wants it");
        self.paper.capacity()
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        if self.fault.is_some() {
            std::panic::panic_any(PanicsWhenDropped);
        }
        self.paper.execute(batch, output)
    }
}

/// An engine whose executors have these faults, one after the other, and then none.
fn start_broken<const N: usize>(faults: [Option<Fault>; N]) -> EngineHandle {
    let mut faults = faults.into_iter();
    Engine::start(one_row(60_000, 0), move || {
        let fault = faults.next().flatten();
        Ok(Box::new(Broken { paper: PaperExecutor::new(CAPACITY), fault }) as Box<dyn Executor>)
    })
    .expect("it starts")
}

#[test]
fn a_panic_that_panics_again_is_one_failed_step() {
    let engine = start_broken([Some(Fault::NastyPanic)]);
    let requests = [1, 2].map(|i| request(&engine, &[i; 20], 3));
    let [broken, waiting] = requests.each_ref().map(|r| engine.submit(r.clone()).expect("there is room"));
    assert_eq!(Answer::read(&requests[0], broken).failure, Some(EngineFailure::StepPanicked));
    Answer::read(&requests[1], waiting).check(&requests[1]);
    assert!(engine.is_healthy());
}

#[test]
fn an_executor_that_panics_when_asked_for_its_capacity_makes_it_unhealthy() {
    let engine = start_broken([Some(Fault::NastyPanic), Some(Fault::NoCapacity)]);
    let requests = [1, 2].map(|i| request(&engine, &[i; 20], 3));
    let [broken, waiting] = requests.each_ref().map(|r| engine.submit(r.clone()).expect("there is room"));
    assert_eq!(Answer::read(&requests[0], broken).failure, Some(EngineFailure::StepPanicked));
    assert_eq!(Answer::read(&requests[1], waiting).failure, Some(EngineFailure::Unhealthy));
    assert!(!engine.is_healthy() && engine.is_lost());
    assert_eq!(engine.submit(requests[0].clone()).expect_err("it is dead"), SubmitError::Unhealthy);
}

#[test]
fn an_engine_that_does_not_get_on_is_not_healthy_and_an_idle_one_is() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let mut n_made = 0;
    let engine = Engine::start(one_row(60_000, 0), move || {
        n_made += 1;
        if n_made > 1 {
            let _ = wait.recv();
        }
        let fault = (n_made == 1).then_some(Fault::NastyPanic);
        Ok(Box::new(Broken { paper: PaperExecutor::new(CAPACITY), fault }) as Box<dyn Executor>)
    })
    .expect("it starts");
    let idle = start(EngineConfig::default(), &Gate::open());
    let requests = [1, 2].map(|i| request(&engine, &[i; 20], 3));
    let [broken, waiting] = requests.each_ref().map(|r| engine.submit(r.clone()).expect("there is room"));
    assert_eq!(Answer::read(&requests[0], broken).failure, Some(EngineFailure::StepPanicked));
    let begun = std::time::Instant::now();
    while engine.is_healthy() {
        assert!(begun.elapsed().as_secs() < 60, "it hangs and nobody sees it");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(idle.is_healthy(), "nothing to do is no fault");
    assert!(!engine.is_lost(), "it may get on again");
    go.send(()).expect("the engine waits");
    Answer::read(&requests[1], waiting).check(&requests[1]);
    assert!(engine.is_healthy());
}

#[test]
fn a_request_that_waits_too_long_for_its_first_step_is_given_up() {
    let gate = Gate::closed();
    let engine = start(EngineConfig { queue_timeout_ms: 300, ..one_row(60_000, 0) }, &gate);
    let requests = [1, 2].map(|i| request(&engine, &[i; 40], 5));
    let running = engine.submit(requests[0].clone()).expect("there is room");
    assert_eq!(gate.wait_for_step(1), [requests[0].id]);
    let waiting = engine.submit(requests[1].clone()).expect("there is room");
    let answer = Answer::read(&requests[1], waiting);
    assert_eq!(answer.failure, Some(EngineFailure::QueueTimedOut { timeout_ms: 300 }));
    gate.let_all_pass();
    // The time of a request whose first step has begun is not limited.
    Answer::read(&requests[0], running).check(&requests[0]);
    let stats = engine.stats();
    assert_eq!((stats.failures.requests, stats.scheduler.queued_requests), (1, 0));
}
