//! The threads on which executors are made and run steps. The engine can leave one behind that hangs. Does not know requests.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SendError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use throng_core::batch::{ScheduledBatch, StepOutput};
use throng_core::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_core::time::Nanos;

use crate::engine_core::{Epoch, Input, StepDone, StepError};
use crate::error::EngineError;
use crate::message::{Inbox, Message};

/// Makes executors.
pub type MakeExecutor = dyn FnMut() -> Result<Box<dyn Executor>, ExecutorError> + Send;

/// An executor and what it can hold.
pub type MadeExecutor = (Box<dyn Executor>, ExecutorCapacity);

/// Calls `make_executor` so that its panic, or that of the executor asked for its capacity, is an error.
pub fn make_guarded(make_executor: &mut MakeExecutor) -> Result<MadeExecutor, EngineError> {
    let make = || -> Result<MadeExecutor, EngineError> {
        let executor = make_executor()?;
        let capacity = executor.capacity();
        Ok((executor, capacity))
    };
    match catch_unwind(AssertUnwindSafe(make)) {
        Ok(made) => made,
        Err(panic) => Err(EngineError::ExecutorPanicked(panic_message(panic))),
    }
}

#[derive(Debug)]
struct Job {
    batch: Arc<ScheduledBatch>,
    output: StepOutput,
}

/// The engine's end of the thread. Dropping it ends the thread as soon as its step does.
#[derive(Debug)]
pub struct ExecutorThread {
    epoch: Epoch,
    /// Holds one: the next job comes after the end of the last was told.
    jobs: SyncSender<Job>,
}

impl ExecutorThread {
    /// Starts a thread that runs steps on `executor` and reports to `inbox`.
    pub fn start(executor: Box<dyn Executor>, epoch: Epoch, inbox: Inbox) -> std::io::Result<Self> {
        Self::spawn(epoch, move |jobs| run(executor, epoch, jobs, inbox))
    }

    /// Starts a thread that makes an executor, reports whether it could, and then runs steps on it.
    pub fn start_making(
        make_executor: Arc<Mutex<Box<MakeExecutor>>>,
        epoch: Epoch,
        inbox: Inbox,
    ) -> std::io::Result<Self> {
        Self::spawn(epoch, move |jobs| {
            let made = {
                let mut make_executor = make_executor.lock().unwrap_or_else(PoisonError::into_inner);
                make_guarded(&mut **make_executor)
            };
            let (executor, report) = match made {
                Ok((executor, capacity)) => (Some(executor), Input::ExecutorMade { epoch, capacity }),
                Err(error) => (None, Input::ExecutorNotMade { epoch, reason: error.to_string() }),
            };
            if inbox.send(Message::Input(report)).is_ok()
                && let Some(executor) = executor
            {
                run(executor, epoch, jobs, inbox);
            }
        })
    }

    fn spawn(epoch: Epoch, body: impl FnOnce(Receiver<Job>) + Send + 'static) -> std::io::Result<Self> {
        let (jobs, receiver) = sync_channel(1);
        let thread = std::thread::Builder::new().name(format!("throng-step-{}", epoch.0));
        thread.spawn(move || body(receiver))?;
        Ok(Self { epoch, jobs })
    }

    /// Hands a batch over. Its end comes as [`Input::StepDone`].
    ///
    /// # Errors
    /// That end at once, when the thread has died.
    pub fn execute(&self, batch: Arc<ScheduledBatch>, output: StepOutput) -> Result<(), Box<StepDone>> {
        let sent = self.jobs.send(Job { batch, output });
        sent.map_err(|SendError(Job { output, .. })| Box::new(StepDone::of_dead_thread(self.epoch, output)))
    }
}

/// Tells the engine of the end of each step, also when the thread dies in it.
struct Reporter {
    epoch: Epoch,
    inbox: Inbox,
    has_step: bool,
}

impl Reporter {
    /// Whether there is still an engine to tell.
    fn report(&mut self, output: StepOutput, executing: Nanos, result: Result<(), StepError>) -> bool {
        self.has_step = false;
        let done = StepDone { epoch: self.epoch, output, executing, result };
        self.inbox.send(Message::Input(Input::StepDone(done))).is_ok()
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        if self.has_step {
            let done = StepDone::of_dead_thread(self.epoch, StepOutput::default());
            let _ = self.inbox.send(Message::Input(Input::StepDone(done)));
        }
    }
}

fn run(mut executor: Box<dyn Executor>, epoch: Epoch, jobs: Receiver<Job>, inbox: Inbox) {
    let mut reporter = Reporter { epoch, inbox, has_step: false };
    for Job { batch, mut output } in jobs {
        reporter.has_step = true;
        let begun = Instant::now();
        let step = catch_unwind(AssertUnwindSafe(|| executor.execute(&batch, &mut output)));
        let executing = Nanos::from(begun.elapsed());
        let result = match step {
            Ok(result) => result.map_err(StepError::Executor),
            Err(panic) => Err(StepError::Panicked(panic_message(panic))),
        };
        // Before the report: the scheduler then gets the batch's buffers back.
        drop(batch);
        if result.is_err() {
            // Before the report: the next executor may need the memory. What it panics with tells nothing new.
            drop_quietly(executor);
            reporter.report(output, executing, result);
            return;
        }
        if !reporter.report(output, executing, result) {
            return;
        }
    }
}

/// What a panic said, for the log.
pub fn panic_message(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("no message").to_owned();
    drop_quietly(panic);
    text
}

/// Drops what may panic in being dropped. What it panics with is not dropped: that might panic as well.
fn drop_quietly<T>(value: T) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        std::mem::forget(panic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_dies_in_a_step_tells_of_it() {
        let (inbox, messages) = std::sync::mpsc::channel();
        let mut reporter = Reporter { epoch: Epoch(3), inbox, has_step: true };
        let next_step = || match messages.recv() {
            Ok(Message::Input(Input::StepDone(done))) => Some(done),
            _ => None,
        };
        assert!(reporter.report(StepOutput::default(), Nanos::default(), Ok(())));
        assert_eq!(next_step().expect("a step that ended").result, Ok(()));
        reporter.has_step = true;
        drop(reporter);
        let done = next_step().expect("a step that ended");
        assert_eq!(done.epoch, Epoch(3));
        assert!(matches!(done.result, Err(StepError::Panicked(_))));
        assert!(next_step().is_none());
    }

    #[test]
    fn a_dead_thread_is_told_at_once() {
        let (jobs, receiver) = sync_channel(1);
        drop(receiver);
        let thread = ExecutorThread { epoch: Epoch(0), jobs };
        let done = thread.execute(Arc::default(), StepOutput::default()).expect_err("nobody is there");
        assert!(matches!(done.result, Err(StepError::Panicked(_))));
    }
}
