//! The threads on which executors are created and run steps. The engine can abandon one that hangs. Does not
//! know requests.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use throng_core::engine::{Epoch, Input, StepDone, StepError};
use throng_core::scheduling::batch::{ScheduledBatch, StepOutput};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError, MAX_STEPS_IN_FLIGHT};
use throng_core::time::Nanos;

use crate::error::EngineError;
use crate::message::{Inbox, Message};

/// Function that creates executors.
pub type MakeExecutor = dyn FnMut() -> Result<Box<dyn Executor>, ExecutorError> + Send;

/// An executor and its capacity.
pub type MadeExecutor = (Box<dyn Executor>, ExecutorCapacity);

/// Calls `make_executor`, turning a panic in it or in the executor's capacity into an error.
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
enum Job {
    /// Begins a step.
    Submit(Arc<ScheduledBatch>),
    /// Wait for the oldest step and report its end.
    Collect(StepOutput),
}

/// The engine's handle of the thread. Dropping it ends the thread as soon as the step that it waits for
/// ends.
#[derive(Debug)]
pub struct ExecutorThread {
    epoch: Epoch,
    /// Queue with room for all jobs at a time: the steps in flight and the job to collect the oldest.
    /// Sending never blocks.
    jobs: SyncSender<Job>,
    /// Number of steps that were submitted and whose end was not reported.
    n_in_flight: usize,
    /// Whether the thread waits for the oldest step.
    is_collecting: bool,
}

impl ExecutorThread {
    /// Starts a thread that runs steps on `executor` and reports to `inbox`.
    pub fn start(executor: Box<dyn Executor>, epoch: Epoch, inbox: Inbox) -> std::io::Result<Self> {
        Self::spawn(epoch, move |jobs| run(executor, epoch, jobs, inbox))
    }

    /// Starts a thread that creates an executor, reports the outcome, and then runs steps on it.
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
        let (jobs, receiver) = sync_channel(MAX_STEPS_IN_FLIGHT + 1);
        let thread = std::thread::Builder::new().name(format!("throng-step-{}", epoch.0));
        thread.spawn(move || body(receiver))?;
        Ok(Self { epoch, jobs, n_in_flight: 0, is_collecting: false })
    }

    /// Submits a batch. Its end is reported as [`Input::StepDone`] once it is [collected](Self::collect).
    ///
    /// # Errors
    /// The end of the step, if the thread has ended without a step in flight and so cannot report it.
    pub fn submit(&mut self, batch: Arc<ScheduledBatch>) -> Result<(), Box<StepDone>> {
        let sent = self.jobs.send(Job::Submit(batch));
        self.n_in_flight += 1;
        if sent.is_err() && self.n_in_flight == 1 {
            return Err(Box::new(StepDone::of_dead_thread(self.epoch, StepOutput::default())));
        }
        Ok(())
    }

    /// Whether a step is in flight that the thread does not wait for.
    pub fn has_step_to_collect(&self) -> bool {
        self.n_in_flight > 0 && !self.is_collecting
    }

    /// Makes the thread wait for the oldest step, which answers into `output`, and report its end.
    pub fn collect(&mut self, output: StepOutput) {
        self.is_collecting = true;
        // A thread that has died with a step has told of it.
        let _ = self.jobs.send(Job::Collect(output));
    }

    /// Notes that the end of a step was reported.
    pub fn note_end(&mut self, epoch: Epoch) {
        if epoch == self.epoch {
            self.n_in_flight = self.n_in_flight.saturating_sub(1);
            self.is_collecting = false;
        }
    }
}

/// Reports the end of each step to the engine, also when the thread ends in it.
struct Reporter {
    epoch: Epoch,
    inbox: Inbox,
    n_steps: usize,
}

impl Reporter {
    /// Reports the end of a step; `false` if the engine has ended.
    fn report(&mut self, output: StepOutput, executing: Nanos, result: Result<(), StepError>) -> bool {
        self.n_steps -= 1;
        let done = StepDone { epoch: self.epoch, output, executing, result };
        self.inbox.send(Message::Input(Input::StepDone(done))).is_ok()
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        if self.n_steps > 0 {
            let done = StepDone::of_dead_thread(self.epoch, StepOutput::default());
            let _ = self.inbox.send(Message::Input(Input::StepDone(done)));
        }
    }
}

/// A step that was submitted to the executor.
struct Submitted {
    batch: Arc<ScheduledBatch>,
    result: Result<(), StepError>,
    took: Nanos,
}

fn run(mut executor: Box<dyn Executor>, epoch: Epoch, jobs: Receiver<Job>, inbox: Inbox) {
    let mut reporter = Reporter { epoch, inbox, n_steps: 0 };
    let mut submitted = VecDeque::new();
    for job in jobs {
        let begun = Instant::now();
        match job {
            Job::Submit(batch) => {
                reporter.n_steps += 1;
                let result = guarded(|| executor.submit(&batch));
                submitted.push_back(Submitted { batch, result, took: Nanos::from(begun.elapsed()) });
            }
            Job::Collect(mut output) => {
                let Some(Submitted { batch, result, took }) = submitted.pop_front() else { continue };
                let result = result.and_then(|()| guarded(|| executor.collect(&batch, &mut output)));
                let executing = Nanos(took.0 + Nanos::from(begun.elapsed()).0);
                // Before the report: the scheduler then gets the batch's buffers back.
                drop(batch);
                if result.is_err() {
                    // Before the report: the next executor may need the memory. What it panics with tells nothing new.
                    drop_quietly(executor);
                    reporter.report(output, executing, result);
                    // The steps behind it will not be run.
                    reporter.n_steps = 0;
                    return;
                }
                if !reporter.report(output, executing, result) {
                    return;
                }
            }
        }
    }
}

/// Calls the executor, turning a panic into an error.
fn guarded(call: impl FnOnce() -> Result<(), ExecutorError>) -> Result<(), StepError> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(StepError::Executor),
        Err(panic) => Err(StepError::Panicked(panic_message(panic))),
    }
}

/// Message of a panic, for the log.
pub fn panic_message(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("no message").to_owned();
    drop_quietly(panic);
    text
}

/// Drops a value, ignoring a panic. The payload of the panic is not dropped, since that might panic as
/// well.
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
        let mut reporter = Reporter { epoch: Epoch(3), inbox, n_steps: 2 };
        let next_step = || match messages.recv() {
            Ok(Message::Input(Input::StepDone(done))) => Some(done),
            _ => None,
        };
        assert!(reporter.report(StepOutput::default(), Nanos::default(), Ok(())));
        assert_eq!(next_step().expect("a step that ended").result, Ok(()));
        drop(reporter);
        let done = next_step().expect("a step that ended");
        assert_eq!(done.epoch, Epoch(3));
        assert!(matches!(done.result, Err(StepError::Panicked(_))));
        assert!(next_step().is_none());
    }

    #[test]
    fn a_dead_thread_is_told_once() {
        let (jobs, receiver) = sync_channel(3);
        drop(receiver);
        let mut thread = ExecutorThread { epoch: Epoch(0), jobs, n_in_flight: 0, is_collecting: false };
        let done = thread.submit(Arc::default()).expect_err("nobody is there");
        assert!(matches!(done.result, Err(StepError::Panicked(_))));
        assert!(thread.submit(Arc::default()).is_ok());
    }

    /// Cannot submit a second step.
    struct Choosy(usize);

    impl Executor for Choosy {
        fn capacity(&self) -> ExecutorCapacity {
            unreachable!("nobody asks")
        }

        fn submit(&mut self, _: &ScheduledBatch) -> Result<(), ExecutorError> {
            self.0 += 1;
            if self.0 == 2 { Err(ExecutorError::Device("the second".into())) } else { Ok(()) }
        }

        fn collect(&mut self, _: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
            output.begin_sequence();
            Ok(())
        }
    }

    #[test]
    fn a_step_that_cannot_be_submitted_fails_after_the_one_before_it_has_ended() {
        let (inbox, messages) = std::sync::mpsc::channel();
        let mut thread = ExecutorThread::start(Box::new(Choosy(0)), Epoch(0), inbox).unwrap();
        let next = |thread: &mut ExecutorThread| {
            thread.collect(StepOutput::default());
            let Ok(Message::Input(Input::StepDone(done))) = messages.recv() else { panic!("a step ends") };
            thread.note_end(done.epoch);
            (done.result.is_ok(), done.output.n_sequences(), thread.has_step_to_collect())
        };
        thread.submit(Arc::default()).expect("it is there");
        thread.submit(Arc::default()).expect("it is there");
        assert_eq!(next(&mut thread), (true, 1, true));
        assert_eq!(next(&mut thread), (false, 0, false));
    }
}
