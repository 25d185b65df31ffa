//! The trace of a request while its stream is open: collects steps, pauses and ends into a
//! [`RequestTrace`]. Does not know its readers.

use crate::scheduling::batch::ScheduledSequence;
use crate::time::{Nanos, Timestamp};
use crate::timeline::Timeline;
use crate::timeline::request_trace::{QueueCause, QueueWaits, RequestTrace, StepShare};

use crate::engine::step_log::StepRecord;

/// Waiting time of the queue by cause, since the engine's start. A request's waits are the difference of
/// two readings.
#[derive(Debug, Default)]
pub struct QueueClock {
    waits: QueueWaits,
    /// Cause since then, if any.
    cause: Option<QueueCause>,
    since: Timestamp,
}

impl QueueClock {
    /// Notes the cause that holds the queue up from now on.
    pub fn turn(&mut self, now: Timestamp, cause: Option<QueueCause>) {
        self.waits = self.read(now);
        (self.cause, self.since) = (cause, now);
    }

    fn read(&self, now: Timestamp) -> QueueWaits {
        let mut waits = self.waits;
        if let Some(cause) = self.cause {
            waits.add(cause, now.since(self.since));
        }
        waits
    }
}

/// The trace of a request that has not ended.
#[derive(Debug)]
pub struct OpenTrace {
    arrived: Timestamp,
    at_arrival: QueueWaits,
    is_queued: bool,
    trace: RequestTrace,
}

impl OpenTrace {
    /// Creates the trace of a request that arrived at `arrived` and is accepted now.
    pub fn new(arrived: Timestamp, now: Timestamp, clock: &QueueClock) -> Self {
        Self { arrived, at_arrival: clock.read(now), is_queued: true, trace: RequestTrace::default() }
    }

    /// Time of the request's arrival.
    pub fn arrived(&self) -> Timestamp {
        self.arrived
    }

    /// Notes that the request has left the queue.
    pub fn dequeue(&mut self, now: Timestamp, clock: &QueueClock) {
        if std::mem::take(&mut self.is_queued) {
            self.trace.queued = now.since(self.arrived);
            self.trace.waits = clock.read(now).since(&self.at_arrival);
        }
    }

    /// Notes the share of one of its sequences in a step that has ended.
    pub fn add(&mut self, scheduled: &ScheduledSequence, step: &StepRecord) {
        let share = StepShare {
            started: step.started,
            duration: step.duration,
            executing: step.executing,
            start: scheduled.start,
            n_tokens: scheduled.n_tokens() as u32,
            n_drafts: scheduled.n_drafts as u32,
            is_prompt: scheduled.start < scheduled.n_prompt,
            n_sequences: step.n_sequences,
            n_step_tokens: step.n_tokens,
        };
        self.trace.add(&share, self.arrived);
    }

    /// Adds the duration of a pause.
    pub fn paused(&mut self, time: Nanos) {
        self.trace.n_pauses += 1;
        self.trace.paused = Nanos(self.trace.paused.0.saturating_add(time.0));
    }

    /// Notes that one of its continuations ended.
    pub fn finished(&mut self, timeline: &Timeline) {
        self.trace.n_preemptions += timeline.n_preemptions;
        self.trace.restored_tokens += timeline.restored_tokens;
        self.trace.pulled_tokens += timeline.pulled_tokens;
        self.trace.restoring = Nanos(self.trace.restoring.0.saturating_add(timeline.restoring.0));
    }

    /// Completes the trace of a request that ends now.
    pub fn close(mut self, now: Timestamp, clock: &QueueClock) -> RequestTrace {
        self.dequeue(now, clock);
        self.trace.end = now.since(self.arrived);
        self.trace
    }
}
