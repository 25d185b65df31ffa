//! The open streams: turns the scheduler's events into effects, and tracks readers that are behind. Does not
//! know steps.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::fleet::replica::{Timing, TokenReport};
use crate::request::{Request, RequestId, TenantId};
use crate::scheduling::batch::ScheduledBatch;
use crate::scheduling::name_hasher::NameState;
use crate::scheduling::scheduler::{Event, Failure};
use crate::time::Timestamp;
use crate::timeline::request_trace::QueueCause;

use super::effect::{Effect, PlainToken};
use super::traces::{OpenTrace, QueueClock};
use crate::engine::error::{EngineFailure, StreamEvent};
use crate::engine::step_log::StepRecord;

/// All open streams.
#[derive(Debug)]
pub struct Streams {
    open: HashMap<RequestId, OpenStream, NameState>,
    /// Paused requests and the times of their pauses, the longest paused first.
    paused: BTreeSet<(Timestamp, RequestId)>,
    /// Requests that wait for their first step and their arrivals, the longest waiting first.
    queued: BTreeSet<(Timestamp, RequestId)>,
    /// Failure of the step whose requests the scheduler reports as failed.
    pub step_failure: EngineFailure,
    /// Number of failed requests.
    pub n_failed: u64,
    /// The time of the newest input.
    pub now: Timestamp,
    /// Whether tokens are delivered without log-probabilities, many in one effect.
    pub delivers_plain: bool,
    /// Tokens of [`Effect::DeliverPlain`] that were not taken yet.
    pub plain_tokens: Vec<PlainToken>,
    clock: QueueClock,
}

#[derive(Debug)]
struct OpenStream {
    tenant: TenantId,
    /// Length of the prompt, with which the request counts in the queue; `None` once it has left the queue.
    queued_tokens: Option<usize>,
    /// Number of continuations that have not ended.
    n_live: u32,
    /// Log-probabilities of the prompt so far.
    prompt_reports: Vec<TokenReport>,
    reader: Reader,
    trace: OpenTrace,
    /// Number of times that the reader fell behind, less the times that it caught up: reports of the two
    /// may overtake each other.
    n_behind: u32,
}

/// State of a stream's reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    KeepsUp,
    /// The reader is behind, and its request is paused.
    Behind {
        n_events: usize,
        since: Timestamp,
    },
}

impl Streams {
    /// Creates the set without streams.
    pub fn new() -> Self {
        Self {
            open: HashMap::default(),
            paused: BTreeSet::new(),
            queued: BTreeSet::new(),
            step_failure: EngineFailure::Stopped,
            n_failed: 0,
            now: Timestamp::default(),
            delivers_plain: false,
            plain_tokens: Vec::new(),
            clock: QueueClock::default(),
        }
    }

    /// Adds the stream of a request that arrived at `arrived`.
    pub fn open(&mut self, request: &Request, arrived: Timestamp) {
        let stream = OpenStream {
            tenant: request.tenant.clone(),
            queued_tokens: Some(request.n_queued_tokens()),
            n_live: request.continuations().count() as u32,
            prompt_reports: Vec::new(),
            reader: Reader::KeepsUp,
            trace: OpenTrace::new(arrived, self.now, &self.clock),
            n_behind: 0,
        };
        self.queued.insert((arrived, request.id));
        self.open.insert(request.id, stream);
    }

    /// Whether the stream of a request is open.
    pub fn is_open(&self, request: RequestId) -> bool {
        self.open.contains_key(&request)
    }

    /// Turns an event of the scheduler into effects. Events of closed streams are dropped.
    pub fn pass_on(&mut self, event: Event<'_>, effects: &mut Vec<Effect>) {
        match event {
            Event::Dequeued { request } => {
                let Some(stream) = self.open.get_mut(&request) else { return };
                self.queued.remove(&(stream.trace.arrived(), request));
                stream.trace.dequeue(self.now, &self.clock);
                if let Some(n_tokens) = stream.queued_tokens.take() {
                    effects.push(Effect::LeaveQueue { n_tokens });
                }
            }
            Event::PromptToken { request, token } => {
                if let Some(stream) = self.open.get_mut(&request) {
                    stream.prompt_reports.push(token.into());
                }
            }
            Event::PromptDone { request, cached_tokens } => {
                if let Some(stream) = self.open.get_mut(&request) {
                    let logprobs = std::mem::take(&mut stream.prompt_reports);
                    let event = StreamEvent::Prompt { cached_tokens, logprobs };
                    effects.push(Effect::Deliver { request, event });
                }
            }
            Event::Token { sequence, token } if self.delivers_plain => {
                self.plain_tokens.push(PlainToken { request: sequence.request, token: token.chosen.token });
                match effects.last_mut() {
                    Some(Effect::DeliverPlain { n_tokens }) => *n_tokens += 1,
                    _ => effects.push(Effect::DeliverPlain { n_tokens: 1 }),
                }
            }
            Event::Token { sequence, token } => {
                // The scheduler ends a request as soon as its stream is closed, so that no token comes later.
                debug_assert!(self.open.contains_key(&sequence.request), "a token of a closed stream");
                let event = StreamEvent::Token { index: sequence.index, report: token.into() };
                effects.push(Effect::Deliver { request: sequence.request, event });
            }
            Event::Finished { sequence, reason, timeline } => {
                let request = sequence.request;
                let Some(stream) = self.open.get_mut(&request) else { return };
                let event =
                    StreamEvent::Finished { index: sequence.index, reason, timing: Timing::from(&timeline) };
                effects.push(Effect::Deliver { request, event });
                stream.trace.finished(&timeline);
                stream.n_live -= 1;
                if stream.n_live == 0 {
                    self.close(request, None, effects);
                }
            }
            Event::Failed { request, failure } => {
                let failure = match failure {
                    Failure::Step => self.step_failure.clone(),
                    Failure::Sequence(error) => error.into(),
                };
                self.close(request, Some(failure), effects);
            }
        }
    }

    /// Ends a stream, if it is open.
    pub fn close(&mut self, request: RequestId, failure: Option<EngineFailure>, effects: &mut Vec<Effect>) {
        self.forget_reader(request);
        let Some(stream) = self.open.remove(&request) else { return };
        self.queued.remove(&(stream.trace.arrived(), request));
        self.n_failed += u64::from(failure.is_some());
        if let Some(n_tokens) = stream.queued_tokens {
            effects.push(Effect::LeaveQueue { n_tokens });
        }
        let trace = Arc::new(stream.trace.close(self.now, &self.clock));
        effects.push(Effect::Close { request, failure, trace });
    }

    /// Notes the cause for which waiting requests got no share of the step that was just planned.
    pub fn turn_queue_clock(&mut self, cause: Option<QueueCause>) {
        self.clock.turn(self.now, cause);
    }

    /// Notes a step that has ended in the traces of its requests.
    pub fn trace_step(&mut self, batch: &ScheduledBatch, record: &StepRecord) {
        for scheduled in batch.sequences() {
            if let Some(stream) = self.open.get_mut(&scheduled.id.request) {
                stream.trace.add(scheduled, record);
            }
        }
    }

    /// Ends the stream of a reader that has been behind for too long.
    pub fn close_slow(&mut self, request: RequestId, effects: &mut Vec<Effect>) {
        let n_events = match self.open.get(&request).map(|stream| stream.reader) {
            Some(Reader::Behind { n_events, .. }) => n_events,
            Some(Reader::KeepsUp) | None => 0,
        };
        self.close(request, Some(EngineFailure::SlowReader { n_events }), effects);
    }

    /// Notes that a reader is behind. Returns whether its request must be paused from `now` on and was not
    /// paused before.
    pub fn fall_behind(&mut self, request: RequestId, n_events: usize, now: Timestamp) -> bool {
        let Some(stream) = self.open.get_mut(&request) else { return false };
        stream.n_behind += 1;
        if stream.reader != Reader::KeepsUp {
            return false;
        }
        stream.reader = Reader::Behind { n_events, since: now };
        self.paused.insert((now, request));
        true
    }

    /// Notes that a reader has caught up. Returns whether its request was paused and no longer is.
    pub fn catch_up(&mut self, request: RequestId) -> bool {
        let Some(stream) = self.open.get_mut(&request) else { return false };
        stream.n_behind = stream.n_behind.saturating_sub(1);
        stream.n_behind == 0 && self.forget_reader(request)
    }

    /// Removes a request from the paused ones. Returns whether it was one.
    fn forget_reader(&mut self, request: RequestId) -> bool {
        let Some(stream) = self.open.get_mut(&request) else { return false };
        match std::mem::replace(&mut stream.reader, Reader::KeepsUp) {
            Reader::KeepsUp => false,
            Reader::Behind { since, .. } => {
                stream.trace.paused(self.now.since(since));
                self.paused.remove(&(since, request))
            }
        }
    }

    /// The request that has been paused longest, and since when.
    pub fn longest_paused(&self) -> Option<(Timestamp, RequestId)> {
        self.paused.first().copied()
    }

    /// The request that has waited longest for its first step, and since when.
    pub fn longest_queued(&self) -> Option<(Timestamp, RequestId)> {
        self.queued.first().copied()
    }

    /// The longest paused request of the tenant with the most of them, if more than `limit` are paused.
    pub fn surplus_paused(&self, limit: usize) -> Option<RequestId> {
        if self.paused.len() <= limit {
            return None;
        }
        let mut of_tenants: BTreeMap<&TenantId, (usize, RequestId)> = BTreeMap::new();
        for (_, request) in &self.paused {
            let tenant = &self.open.get(request)?.tenant;
            of_tenants.entry(tenant).or_insert((0, *request)).0 += 1;
        }
        of_tenants.into_values().max_by_key(|(n, _)| *n).map(|(_, request)| request)
    }
}
