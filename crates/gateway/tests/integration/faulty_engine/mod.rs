//! Engines over the paper executor that fail at a chosen step.

use std::sync::{Arc, Mutex};

use fastrand::Rng;
use throng_core::scheduling::batch::{ScheduledBatch, SequenceError, StepOutput};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_engine::{Engine, EngineConfig, EngineHandle};
use throng_testkit::paper_executor::PaperExecutor;

/// What goes wrong.
#[derive(Debug, Clone, Copy)]
pub enum FaultKind {
    /// The step fails; the engine goes on with a new executor.
    StepFails,
    /// The step panics; the engine goes on with a new executor.
    StepPanics,
    /// The step never ends; the engine gives it up and goes on with a new executor.
    StepHangs,
    /// The step fails, and no other executor can be made.
    EngineIsLost,
    /// The engine is stopped.
    EngineStops,
    /// The logits of all sequences are NaN, as they would be on any engine.
    LogitsAreNan,
}

/// A fault of an engine's first executor.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// Counted from 1.
    pub at_step: u64,
    pub kind: FaultKind,
}

impl Fault {
    /// A fault that another engine can make good, at one of the first `n_steps` steps.
    pub fn random(rng: &mut Rng, n_steps: u64) -> Self {
        let kinds =
            [FaultKind::StepFails, FaultKind::StepPanics, FaultKind::EngineIsLost, FaultKind::EngineStops];
        Self { at_step: rng.u64(1..=n_steps), kind: kinds[rng.usize(0..kinds.len())] }
    }
}

struct FaultyExecutor {
    paper: PaperExecutor,
    fault: Option<Fault>,
    n_steps: u64,
    /// For [`FaultKind::EngineStops`]; filled once the engine has started.
    engine: Arc<Mutex<Option<EngineHandle>>>,
}

impl Executor for FaultyExecutor {
    fn capacity(&self) -> ExecutorCapacity {
        self.paper.capacity()
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        self.n_steps += 1;
        let fault = self.fault.filter(|fault| fault.at_step == self.n_steps);
        match fault.map(|fault| fault.kind) {
            None => self.paper.execute(batch, output),
            Some(FaultKind::StepFails | FaultKind::EngineIsLost) => {
                Err(ExecutorError::Device("an injected fault".into()))
            }
            Some(FaultKind::StepPanics) => panic!("an injected fault"),
            Some(FaultKind::StepHangs) => loop {
                std::thread::park();
            },
            Some(FaultKind::EngineStops) => {
                let engine = self.engine.lock().expect("no holder panics").take();
                engine.expect("the engine has started").shutdown();
                self.paper.execute(batch, output)
            }
            Some(FaultKind::LogitsAreNan) => {
                output.clear();
                for _ in batch.sequences() {
                    output.begin_sequence();
                    output.fail_sequence(SequenceError::InvalidLogits);
                }
                Ok(())
            }
        }
    }
}

/// An engine with this fault. An executor that replaces the first one has none.
pub fn start(capacity: ExecutorCapacity, config: EngineConfig, fault: Option<Fault>) -> EngineHandle {
    let engine = Arc::new(Mutex::new(None));
    let (own, mut n_made) = (Arc::clone(&engine), 0);
    let make = move || {
        n_made += 1;
        let fault = match fault {
            Some(Fault { kind: FaultKind::EngineIsLost, .. }) if n_made > 1 => {
                return Err(ExecutorError::Device("there is no other executor".into()));
            }
            _ if n_made > 1 => None,
            fault => fault,
        };
        let paper = PaperExecutor::new(capacity);
        Ok(Box::new(FaultyExecutor { paper, fault, n_steps: 0, engine: Arc::clone(&own) }) as _)
    };
    let handle = Engine::start(config, make).expect("the paper executor starts");
    if let Some(Fault { kind: FaultKind::EngineStops, .. }) = fault {
        *engine.lock().expect("no holder panics") = Some(handle.clone());
    }
    handle
}
