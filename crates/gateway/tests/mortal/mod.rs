//! Engines over the paper executor that die as the test wants it.

use std::sync::{Arc, Mutex};

use fastrand::Rng;
use throng_core::batch::{RowError, ScheduledBatch, StepOutput};
use throng_core::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_engine::{Engine, EngineConfig, EngineHandle};
use throng_testkit::paper_executor::PaperExecutor;

/// How an engine dies.
#[derive(Debug, Clone, Copy)]
pub enum Death {
    /// The step fails; the engine goes on with a new executor.
    Fails,
    /// The step panics; the engine goes on with a new executor.
    Panics,
    /// The step fails and there is no other executor.
    IsLost,
    /// The engine is stopped.
    IsStopped,
    /// The logits are no numbers, as they would be everywhere; the engine lives.
    GivesNan,
}

/// Whether and when an engine dies.
#[derive(Debug, Clone, Copy)]
pub enum Fate {
    Lives,
    Dies {
        /// Counted from 1.
        at_step: u64,
        death: Death,
    },
}

impl Fate {
    /// A death at one of the first `n_steps` steps.
    pub fn random(rng: &mut Rng, n_steps: u64) -> Self {
        let deaths = [Death::Fails, Death::Panics, Death::IsLost, Death::IsStopped];
        Self::Dies { at_step: rng.u64(1..=n_steps), death: deaths[rng.usize(0..deaths.len())] }
    }
}

/// An executor whose fate is known.
struct Mortal {
    paper: PaperExecutor,
    fate: Fate,
    n_steps: u64,
    /// Filled once the engine has started.
    engine: Arc<Mutex<Option<EngineHandle>>>,
}

impl Executor for Mortal {
    fn capacity(&self) -> ExecutorCapacity {
        self.paper.capacity()
    }

    fn execute(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        self.n_steps += 1;
        match self.fate {
            Fate::Dies { at_step, death } if at_step == self.n_steps => match death {
                Death::Fails | Death::IsLost => Err(ExecutorError::Device("as the test wants it".into())),
                Death::Panics => panic!("as the test wants it"),
                Death::IsStopped => {
                    let engine = self.engine.lock().expect("nobody panics with it").take();
                    engine.expect("the engine has started").shutdown();
                    self.paper.execute(batch, output)
                }
                Death::GivesNan => {
                    output.clear();
                    for _ in batch.rows() {
                        output.begin_row();
                        output.fail_row(RowError::InvalidLogits);
                    }
                    Ok(())
                }
            },
            _ => self.paper.execute(batch, output),
        }
    }
}

/// An engine with this fate. An executor that takes the place of a dead one lives.
pub fn start(capacity: ExecutorCapacity, config: EngineConfig, fate: Fate) -> EngineHandle {
    let engine = Arc::new(Mutex::new(None));
    let (own, mut n_made) = (Arc::clone(&engine), 0);
    let make = move || {
        n_made += 1;
        let fate = match fate {
            Fate::Dies { death: Death::IsLost, .. } if n_made > 1 => {
                return Err(ExecutorError::Device("there is no other".into()));
            }
            _ if n_made > 1 => Fate::Lives,
            fate => fate,
        };
        let paper = PaperExecutor::new(capacity);
        Ok(Box::new(Mortal { paper, fate, n_steps: 0, engine: Arc::clone(&own) }) as _)
    };
    let handle = Engine::start(config, make).expect("the paper executor starts");
    if let Fate::Dies { death: Death::IsStopped, .. } = fate {
        *engine.lock().expect("nobody panics with it") = Some(handle.clone());
    }
    handle
}
