//! The thread that runs steps. It owns the executor; the engine can leave both behind. Refuses to know requests.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
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
    pub fn execute(&self, batch: Arc<ScheduledBatch>, output: StepOutput) {
        // The thread ends early only after it has reported an error, and then it is not asked again.
        let _ = self.jobs.send(Job { batch, output });
    }
}

fn run(mut executor: Box<dyn Executor>, epoch: Epoch, jobs: Receiver<Job>, inbox: Sender<Message>) {
    for Job { batch, mut output } in jobs {
        let begun = Instant::now();
        let step = catch_unwind(AssertUnwindSafe(|| executor.execute(&batch, &mut output)));
        let executing = Nanos::from(begun.elapsed());
        let result = match step {
            Ok(result) => result.map_err(StepError::Executor),
            Err(panic) => Err(StepError::Panicked(panic_message(&*panic))),
        };
        // Before the report: the scheduler then gets the batch's buffers back.
        drop(batch);
        let failed = result.is_err();
        if failed {
            // Before the report: the next executor may need the memory. What it panics with tells nothing new.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(executor)));
            let _ = inbox.send(Message::StepDone(StepDone { epoch, output, executing, result }));
            return;
        }
        if inbox.send(Message::StepDone(StepDone { epoch, output, executing, result })).is_err() {
            return;
        }
    }
}

/// What a panic said, for the log.
pub fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}
