//! The engine's ends of all streams: turns the scheduler's events into theirs. Never waits for a reader.
//! Refuses to know when a step runs.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use throng_core::request::RequestId;
use throng_core::scheduler::{Event, Failure};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::error::EngineFailure;
use crate::handle::Shared;
use crate::stream::{StreamEvent, TokenReport};

/// The engine's end of one stream.
#[derive(Debug)]
pub struct Outlet {
    /// Where the events go.
    pub events: mpsc::Sender<StreamEvent>,
    /// What the reader finds when the channel closes early.
    pub failure: Arc<OnceLock<EngineFailure>>,
    /// Length of the prompt, with which the request counts in the queue; None once it has left it.
    pub queued_tokens: Option<usize>,
    /// Continuations that have not ended.
    pub n_live: u32,
    /// The prompt's log-probabilities so far.
    pub prompt_reports: Vec<TokenReport>,
}

/// All streams.
#[derive(Debug)]
pub struct Outbox {
    outlets: BTreeMap<RequestId, Outlet>,
    shared: Arc<Shared>,
    /// What became of the step whose requests the scheduler reports as failed.
    pub step_failure: EngineFailure,
    /// Requests whose reader was too slow; the engine has to abort them.
    pub overrun: Vec<RequestId>,
    /// Requests that failed.
    pub n_failed: u64,
}

impl Outbox {
    /// An outbox without streams.
    pub fn new(shared: Arc<Shared>) -> Self {
        let step_failure = EngineFailure::Stopped;
        Self { outlets: BTreeMap::new(), shared, step_failure, overrun: Vec::new(), n_failed: 0 }
    }

    /// Adds a stream.
    pub fn open(&mut self, request: RequestId, outlet: Outlet) {
        self.outlets.insert(request, outlet);
    }

    /// Passes an event on.
    pub fn deliver(&mut self, event: Event<'_>) {
        match event {
            Event::Dequeued { request } => {
                let outlet = self.outlets.get_mut(&request);
                if let Some(n_tokens) = outlet.and_then(|outlet| outlet.queued_tokens.take()) {
                    self.shared.leave_queue(n_tokens);
                }
            }
            Event::PromptToken { request, token } => {
                if let Some(outlet) = self.outlets.get_mut(&request) {
                    outlet.prompt_reports.push(token.into());
                }
            }
            Event::PromptDone { request, cached_tokens } => {
                let outlet = self.outlets.get_mut(&request);
                let logprobs = outlet.map(|o| std::mem::take(&mut o.prompt_reports)).unwrap_or_default();
                self.send(request, StreamEvent::Prompt { cached_tokens, logprobs });
            }
            Event::Token { sequence, token } => {
                let event = StreamEvent::Token { index: sequence.index, report: token.into() };
                self.send(sequence.request, event);
            }
            Event::Finished { sequence, reason, timeline } => {
                let event = StreamEvent::Finished { index: sequence.index, reason, timeline };
                self.send(sequence.request, event);
                self.finish_one(sequence.request);
            }
            Event::Failed { request, failure } => {
                let error = match failure {
                    Failure::Step => self.step_failure.clone(),
                    Failure::Row(error) => error.into(),
                };
                self.fail(request, error);
            }
        }
    }

    /// Ends a stream with a failure.
    pub fn fail(&mut self, request: RequestId, error: EngineFailure) {
        if let Some(outlet) = self.outlets.remove(&request) {
            self.n_failed += 1;
            if let Some(n_tokens) = outlet.queued_tokens {
                self.shared.leave_queue(n_tokens);
            }
            // Set once: the outlet is gone with it.
            let _ = outlet.failure.set(error);
        }
    }

    /// The requests whose streams are open.
    pub fn requests(&self) -> Vec<RequestId> {
        self.outlets.keys().copied().collect()
    }

    fn send(&mut self, request: RequestId, event: StreamEvent) {
        let Some(outlet) = self.outlets.get(&request) else { return };
        // A closed channel means that the stream was dropped; its abort is on the way.
        if let Err(TrySendError::Full(_)) = outlet.events.try_send(event) {
            let n_events = outlet.events.max_capacity();
            self.fail(request, EngineFailure::SlowReader { n_events });
            self.overrun.push(request);
        }
    }

    fn finish_one(&mut self, request: RequestId) {
        if let Some(outlet) = self.outlets.get_mut(&request) {
            outlet.n_live -= 1;
            if outlet.n_live == 0 {
                self.outlets.remove(&request);
            }
        }
    }
}
