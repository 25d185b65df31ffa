//! The engine's ends of all streams: turns the scheduler's events into theirs. Never waits for a reader.
//! Refuses to know when a step runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use throng_core::request::{RequestId, TenantId};
use throng_core::scheduler::{Event, Failure};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::error::EngineFailure;
use crate::handle::Shared;
use crate::stream::{StreamEvent, StreamLink, TokenReport};

/// The engine's end of one stream.
#[derive(Debug)]
pub struct Outlet {
    /// Where the events go.
    pub events: mpsc::Sender<StreamEvent>,
    /// What the reader finds when the channel closes early, and whether it is awaited.
    pub link: Arc<StreamLink>,
    /// Whose request it is.
    pub tenant: TenantId,
    /// Since when it has been paused.
    pub paused_since: Option<Instant>,
    /// Tokens with which the request counts in the queue; None once it has left it.
    pub queued_tokens: Option<usize>,
    /// Continuations that have not ended.
    pub n_live: u32,
    /// The prompt's log-probabilities so far.
    pub prompt_reports: Vec<TokenReport>,
}

impl Outlet {
    /// Events that wait for the reader.
    fn n_waiting(&self) -> usize {
        self.events.max_capacity() - self.events.capacity()
    }
}

/// All streams.
#[derive(Debug)]
pub struct Outbox {
    outlets: BTreeMap<RequestId, Outlet>,
    shared: Arc<Shared>,
    /// Requests that are paused, and since when; the longest first.
    paused: BTreeSet<(Instant, RequestId)>,
    /// Requests with so many events waiting that the engine has to pause them.
    pub full: Vec<RequestId>,
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
        Self {
            outlets: BTreeMap::new(),
            shared,
            paused: BTreeSet::new(),
            full: Vec::new(),
            step_failure,
            overrun: Vec::new(),
            n_failed: 0,
        }
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
        if let Some(outlet) = self.close(request) {
            self.n_failed += 1;
            if let Some(n_tokens) = outlet.queued_tokens {
                self.shared.leave_queue(n_tokens);
            }
            // Set once: the outlet is gone with it.
            let _ = outlet.link.failure.set(error);
        }
    }

    /// Ends a stream whose reader is behind for good.
    pub fn fail_slow(&mut self, request: RequestId) {
        let n_events = self.outlets.get(&request).map_or(0, Outlet::n_waiting);
        self.fail(request, EngineFailure::SlowReader { n_events });
    }

    /// Notes that a request is paused from `now` on. False when it is already, has ended, or its reader has caught up.
    pub fn pause(&mut self, request: RequestId, now: Instant) -> bool {
        let Some(outlet) = self.outlets.get_mut(&request) else { return false };
        if outlet.paused_since.is_some() || !outlet.link.pause(|| outlet.n_waiting()) {
            return false;
        }
        outlet.paused_since = Some(now);
        self.paused.insert((now, request));
        true
    }

    /// Notes that a request is not paused any more.
    pub fn resume(&mut self, request: RequestId) {
        let outlet = self.outlets.get_mut(&request);
        if let Some(since) = outlet.and_then(|outlet| outlet.paused_since.take()) {
            self.paused.remove(&(since, request));
        }
    }

    /// The request that has been paused longest, and since when.
    pub fn longest_paused(&self) -> Option<(Instant, RequestId)> {
        self.paused.first().copied()
    }

    /// When more than `limit` are paused: the longest paused request of the tenant that has the most of them.
    pub fn surplus_paused(&self, limit: usize) -> Option<RequestId> {
        if self.paused.len() <= limit {
            return None;
        }
        let mut of_tenants: BTreeMap<&TenantId, (usize, RequestId)> = BTreeMap::new();
        for (_, request) in &self.paused {
            let tenant = &self.outlets.get(request)?.tenant;
            of_tenants.entry(tenant).or_insert((0, *request)).0 += 1;
        }
        of_tenants.into_values().max_by_key(|(n, _)| *n).map(|(_, request)| request)
    }

    /// The requests whose streams are open.
    pub fn requests(&self) -> Vec<RequestId> {
        self.outlets.keys().copied().collect()
    }

    fn send(&mut self, request: RequestId, event: StreamEvent) {
        let Some(outlet) = self.outlets.get(&request) else { return };
        match outlet.events.try_send(event) {
            Ok(()) if outlet.n_waiting() >= outlet.link.high_mark => self.full.push(request),
            // A closed channel means that the stream was dropped; its abort is on the way.
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            // Only were it not paused in time.
            Err(TrySendError::Full(_)) => {
                self.fail_slow(request);
                self.overrun.push(request);
            }
        }
    }

    fn close(&mut self, request: RequestId) -> Option<Outlet> {
        self.resume(request);
        self.outlets.remove(&request)
    }

    fn finish_one(&mut self, request: RequestId) {
        if let Some(outlet) = self.outlets.get_mut(&request) {
            outlet.n_live -= 1;
            if outlet.n_live == 0 {
                self.close(request);
            }
        }
    }
}
