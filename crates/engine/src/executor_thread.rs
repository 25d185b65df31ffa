//! The thread that runs steps. It owns the executor; the engine can leave both behind. Refuses to know requests.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SendError, Sender, SyncSender, sync_channel};
use std::time::Instant;

use throng_core::batch::{ScheduledBatch, StepOutput};
use throng_core::executor::{Executor, ExecutorError};
use throng_core::time::Nanos;

use crate::engine::Message;

/// Which executor a result comes from: one more with each that is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Epoch(pub u64);

/// Why a step gave no result.
#[derive(Debug)]
pub enum StepError {
    /// The executor said so.
    Executor(ExecutorError),
    /// The executor panicked with this message.
    Panicked(String),
}

/// The end of a step.
#[derive(Debug)]
pub struct StepDone {
    /// Whose step it was.
    pub epoch: Epoch,
    /// What it brought.
    pub output: StepOutput,
    /// How long the executor took.
    pub executing: Nanos,
    /// Whether it brought anything. After an error the thread has ended and the executor is gone.
    pub result: Result<(), StepError>,
}

#[derive(Debug)]
struct Job {
    batch: Arc<ScheduledBatch>,
    output: StepOutput,
}

/// The engine's end of the thread. Dropping it ends the thread as soon as its step does.
#[derive(Debug)]
pub struct ExecutorThread {
    /// Results of other epochs come from threads that were left behind.
    pub epoch: Epoch,
    /// Room for one: the next job comes after the end of the last was told.
    jobs: SyncSender<Job>,
}

impl ExecutorThread {
    /// Starts a thread for `executor` that reports to `inbox`.
    pub fn start(executor: Box<dyn Executor>, epoch: Epoch, inbox: Sender<Message>) -> std::io::Result<Self> {
        let (jobs, receiver) = sync_channel(1);
        let thread = std::thread::Builder::new().name(format!("throng-step-{}", epoch.0));
        thread.spawn(move || run(executor, epoch, receiver, inbox))?;
        Ok(Self { epoch, jobs })
    }

    /// Hands a batch over. Its end comes as [`Message::StepDone`].
    ///
    /// # Errors
    /// That end at once, when the thread has died.
    pub fn execute(&self, batch: Arc<ScheduledBatch>, output: StepOutput) -> Result<(), Box<StepDone>> {
        let sent = self.jobs.send(Job { batch, output });
        sent.map_err(|SendError(Job { output, .. })| Box::new(StepDone::of_dead_thread(self.epoch, output)))
    }
}

impl StepDone {
    fn of_dead_thread(epoch: Epoch, output: StepOutput) -> Self {
        let result = Err(StepError::Panicked("the thread has ended".to_owned()));
        Self { epoch, output, executing: Nanos::default(), result }
    }
}

/// Tells the engine of the end of each step, also when the thread dies in it.
struct Reporter {
    epoch: Epoch,
    inbox: Sender<Message>,
    has_step: bool,
}

impl Reporter {
    /// Whether there is still an engine to tell.
    fn report(&mut self, output: StepOutput, executing: Nanos, result: Result<(), StepError>) -> bool {
        self.has_step = false;
        let done = StepDone { epoch: self.epoch, output, executing, result };
        self.inbox.send(Message::StepDone(done)).is_ok()
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        if self.has_step {
            let done = StepDone::of_dead_thread(self.epoch, StepOutput::default());
            let _ = self.inbox.send(Message::StepDone(done));
        }
    }
}

fn run(mut executor: Box<dyn Executor>, epoch: Epoch, jobs: Receiver<Job>, inbox: Sender<Message>) {
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
        assert!(reporter.report(StepOutput::default(), Nanos::default(), Ok(())));
        assert!(matches!(messages.recv(), Ok(Message::StepDone(StepDone { result: Ok(()), .. }))));
        reporter.has_step = true;
        drop(reporter);
        let Ok(Message::StepDone(done)) = messages.recv() else { panic!("a step that ended") };
        assert_eq!(done.epoch, Epoch(3));
        assert!(matches!(done.result, Err(StepError::Panicked(_))));
        assert!(messages.recv().is_err());
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
