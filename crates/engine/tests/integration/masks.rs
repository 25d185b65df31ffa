//! Masks that take long, panic or never come: the sequences that need them sit out the steps, others go on,
//! and only the request whose mask it is fails. A mask that is late changes nothing of what comes out.

use std::sync::{Arc, Condvar, Mutex};

use crate::gate::{Answer, CAPACITY, request, stop};
use throng_core::constraint::{ConstraintError, TokenConstraint, TokenMask};
use throng_core::request::{Request, TokenId};
use throng_core::scheduling::batch::SequenceError;
use throng_core::scheduling::executor::Executor;
use throng_engine::{Engine, EngineConfig, EngineFailure, EngineHandle, EngineState};
use throng_testkit::paper_constraint::PaperConstraint;
use throng_testkit::paper_executor::PaperExecutor;

/// An engine that never waits for a mask.
fn start(config: EngineConfig) -> EngineHandle {
    Engine::start(config, || {
        let executor = PaperExecutor::new(CAPACITY).with_late_masks(fastrand::Rng::with_seed(1), 1);
        Ok(Box::new(executor) as Box<dyn Executor>)
    })
    .expect("it starts")
}

/// Behaviour of a constraint's masks after `n_output` tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Wait until they are released.
    Hang,
    Panic,
}

#[derive(Debug)]
struct Faulty {
    paper: PaperConstraint,
    n_output: usize,
    fault: Fault,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    hangs: bool,
    is_released: bool,
}

impl Faulty {
    fn new(n_output: usize, fault: Fault) -> Arc<Self> {
        let vocabulary_size = CAPACITY.vocabulary_size;
        Arc::new(Self {
            paper: PaperConstraint { vocabulary_size, seed: 3, one_in_forced: 0, fails_after: None },
            n_output,
            fault,
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    fn release(&self) {
        self.state.lock().expect("no panic").is_released = true;
        self.changed.notify_all();
    }

    fn wait_until_it_hangs(&self) {
        let state = self.state.lock().expect("no panic");
        drop(self.changed.wait_while(state, |state| !state.hangs).expect("no panic"));
    }

    fn hang(&self) {
        let mut state = self.state.lock().expect("no panic");
        state.hangs = true;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| !state.is_released).expect("no panic"));
    }
}

impl TokenConstraint for Faulty {
    fn mask(&self, output: &[TokenId], mask: &mut TokenMask) -> Result<(), ConstraintError> {
        match self.fault {
            Fault::Hang if output.len() == self.n_output => self.hang(),
            Fault::Panic if output.len() == self.n_output => panic!("as the test wants it"),
            Fault::Hang | Fault::Panic => {}
        }
        self.paper.mask(output, mask)
    }
}

fn constrained(engine: &EngineHandle, constraint: Arc<dyn TokenConstraint>, prompt: TokenId) -> Request {
    Request { constraint: Some(constraint), ..request(engine, &[prompt; 20], 10) }
}

fn failed(error: ConstraintError) -> Option<EngineFailure> {
    Some(EngineFailure::SequenceFailed(SequenceError::Constraint(error)))
}

#[test]
fn a_sequence_whose_mask_is_not_there_sits_out_the_steps_of_others() {
    for n_output in [0, 1, 5] {
        let engine = start(EngineConfig::default());
        let constraint = Faulty::new(n_output, Fault::Hang);
        let waiting = constrained(&engine, constraint.clone(), 1);
        let stream = engine.submit(waiting.clone()).expect("there is room");
        constraint.wait_until_it_hangs();
        // Requests come and go, constrained ones too, while the mask is evaluated.
        for i in 0..4 {
            let other = Faulty::new(usize::MAX, Fault::Panic);
            let others = [request(&engine, &[i; 30], 20), constrained(&engine, other, i)];
            let streams = others.each_ref().map(|r| engine.submit(r.clone()).expect("there is room"));
            for (request, stream) in others.iter().zip(streams) {
                Answer::read(request, stream).check(request);
            }
        }
        constraint.release();
        Answer::read(&waiting, stream).check(&waiting);
        assert!(stop(&engine).scheduler.counters.left_out > 0);
    }
}

#[test]
fn a_mask_that_panics_fails_its_request_only() {
    let engine = start(EngineConfig::default());
    for n_output in [0, 3] {
        let free = request(&engine, &[9; 30], 30);
        let panicking = constrained(&engine, Faulty::new(n_output, Fault::Panic), 1);
        let of_free = engine.submit(free.clone()).expect("there is room");
        let stream = engine.submit(panicking.clone()).expect("there is room");
        let answer = Answer::read(&panicking, stream);
        assert_eq!(answer.failure, failed(ConstraintError::Failed));
        assert_eq!(answer.sequences[0].0.len(), n_output);
        Answer::read(&free, of_free).check(&free);
    }
    assert_eq!(stop(&engine).failures.panicked_steps, 0);
}

#[test]
fn masks_that_never_come_fail_their_requests_only_and_their_threads_are_replaced() {
    let config = EngineConfig { mask_timeout_ms: 200, max_mask_threads: 1, ..EngineConfig::default() };
    let engine = start(config);
    let constraints = [0, 2].map(|n_output| Faulty::new(n_output, Fault::Hang));
    for constraint in &constraints {
        let hanging = constrained(&engine, constraint.clone(), 1);
        let stream = engine.submit(hanging.clone()).expect("there is room");
        let answer = Answer::read(&hanging, stream);
        assert_eq!(answer.failure, failed(ConstraintError::LimitExceeded));
        assert_eq!(answer.sequences[0].0.len(), constraint.n_output);
    }
    // Both threads hang, and those in their places go on.
    let other = constrained(&engine, Faulty::new(usize::MAX, Fault::Panic), 2);
    Answer::read(&other, engine.submit(other.clone()).expect("there is room")).check(&other);
    let stats = stop(&engine);
    assert_eq!((stats.failures.timed_out_steps, stats.failures.requests), (0, 2));
    constraints.iter().for_each(|constraint| constraint.release());
}

#[test]
fn a_request_is_aborted_and_an_engine_stops_while_masks_are_evaluated() {
    let engine = start(EngineConfig::default());
    let constraint = Faulty::new(0, Fault::Hang);
    let aborted = constrained(&engine, constraint.clone(), 1);
    let stream = engine.submit(aborted).expect("there is room");
    constraint.wait_until_it_hangs();
    drop(stream);
    let free = request(&engine, &[9; 30], 30);
    Answer::read(&free, engine.submit(free.clone()).expect("there is room")).check(&free);

    let waiting = Faulty::new(0, Fault::Hang);
    let stopped = constrained(&engine, waiting.clone(), 2);
    let stream = engine.submit(stopped.clone()).expect("there is room");
    waiting.wait_until_it_hangs();
    engine.shutdown();
    let answer = Answer::read(&stopped, stream);
    assert_eq!(answer.failure, Some(EngineFailure::Stopped));
    stop(&engine);
    assert_eq!(engine.state(), EngineState::Stopped);
    [constraint, waiting].iter().for_each(|constraint| constraint.release());
}
