//! Actions of engines: requests arrive, steps begin and end, effects become messages to the gateway.

use throng_core::engine::{Effect, EngineFailure, EngineState, Epoch, StreamEvent, SubmitError};
use throng_core::request::{RequestId, TokenId};
use throng_core::scheduling::admission::Refusal;
use throng_core::time::{Nanos, Timestamp};

use super::live::{Failure, FailureKind, Slab, State};
use super::sabotage::Sabotage;
use super::{Event, World};
use crate::fleet::replica::Outputs;

/// The outputs of the requests that have not ended.
struct LiveOutputs<'a> {
    live: &'a Slab,
    vocabulary_size: u32,
}

impl Outputs for LiveOutputs<'_> {
    #[inline]
    fn token(&self, request: RequestId, index: u32) -> TokenId {
        let live = self.live.of_attempt(request);
        live.map_or(1, |live| live.timed.request.output_token(index, self.vocabulary_size))
    }
}

impl World<'_> {
    /// A replica receives a request.
    pub(super) fn submit(&mut self, id: RequestId, index: usize) {
        if self.nodes[index].replica.is_none() {
            return self.fail_later(id, index, FailureKind::Unhealthy);
        }
        let Some(request) = self.request_of(id) else { return };
        let now = self.now;
        let Some(replica) = &mut self.nodes[index].replica else { return };
        match replica.submit(request, now) {
            Ok(()) => {
                replica.tick(now);
                let known_at = self.arrival(index, now);
                if let Some((_, live)) = self.live.of_attempt_mut(id) {
                    live.was_taken_in = true;
                    if let Some(running) = live.running_mut() {
                        running.taken_in = known_at;
                        running.submitted = now;
                    }
                }
                self.pump(index);
            }
            Err(error) => self.fail_later(id, index, kind_of_refusal(error)),
        }
    }

    /// A replica is notified that a reader has disconnected.
    pub(super) fn abort(&mut self, id: RequestId, index: usize) {
        let now = self.now;
        let Some(replica) = &mut self.nodes[index].replica else { return };
        replica.abort(id, now);
        replica.tick(now);
        self.pump(index);
    }

    pub(super) fn end_step(&mut self, index: usize, process: u32) {
        let now = self.now;
        let node = &mut self.nodes[index];
        if node.process != process {
            return;
        }
        let Some(replica) = &mut node.replica else { return };
        let vocabulary_size = replica.config().capacity.vocabulary_size;
        replica.end_step(&LiveOutputs { live: &self.live, vocabulary_size }, now);
        replica.tick(now);
        self.pump(index);
    }

    pub(super) fn tick(&mut self, index: usize, process: u32) {
        let now = self.now;
        let node = &mut self.nodes[index];
        if node.process != process {
            return;
        }
        node.tick_at = None;
        let Some(replica) = &mut node.replica else { return };
        replica.tick(now);
        self.pump(index);
    }

    pub(super) fn take_executor(&mut self, index: usize, process: u32, epoch: Epoch) {
        let now = self.now;
        let node = &mut self.nodes[index];
        if node.process != process {
            return;
        }
        let Some(replica) = &mut node.replica else { return };
        replica.take_executor(epoch, now);
        replica.tick(now);
        self.pump(index);
    }

    /// Carries out the effects of a replica's engine.
    pub(super) fn pump(&mut self, index: usize) {
        loop {
            let Some(replica) = &mut self.nodes[index].replica else { return };
            let mut effects = replica.take_effects();
            if effects.is_empty() {
                replica.return_effects(effects);
                break;
            }
            let mut tokens = std::mem::take(&mut self.plain_tokens);
            replica.swap_plain_tokens(&mut tokens);
            let (arrival, mut n_passed) = (self.arrival(index, self.now), 0);
            for effect in effects.drain(..) {
                let Effect::DeliverPlain { n_tokens } = effect else {
                    self.carry_out(index, effect, arrival);
                    continue;
                };
                if let Some(arrival) = arrival {
                    for token in &tokens[n_passed..n_passed + n_tokens] {
                        self.pass_token(token.request, token.token, arrival);
                    }
                }
                n_passed += n_tokens;
            }
            self.plain_tokens = tokens;
            if let Some(replica) = &mut self.nodes[index].replica {
                replica.return_effects(effects);
            }
        }
        self.watch_deadline(index);
    }

    /// Schedules a tick of the engine for a deadline that passes before its step ends.
    fn watch_deadline(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        let Some(replica) = &node.replica else { return };
        let Some(deadline) = replica.core().next_deadline() else { return };
        if replica.busy_until().is_some_and(|end| end <= deadline) {
            return;
        }
        if node.tick_at.is_none_or(|at| at > deadline) {
            let at = deadline.max(self.now);
            node.tick_at = Some(at);
            self.queue.push(at, Event::Tick { replica: index, process: node.process });
        }
    }

    #[inline]
    fn carry_out(&mut self, index: usize, effect: Effect, arrival: Option<Timestamp>) {
        match effect {
            Effect::Deliver { request, event: StreamEvent::Token { report, .. } } => {
                if let Some(arrival) = arrival {
                    self.pass_token(request, report.chosen.token, arrival);
                }
            }
            Effect::Deliver { request, event } => self.deliver(request, event, arrival),
            Effect::Execute { batch, .. } => {
                let node = &mut self.nodes[index];
                let Some(replica) = &mut node.replica else { return };
                let end = replica.begin_step(batch, self.now);
                self.queue.push(end, Event::StepDone { replica: index, process: node.process });
            }
            Effect::EndStep { record, .. } => {
                let counts = &mut self.nodes[index].counts;
                counts.n_steps += 1;
                counts.busy = Nanos(counts.busy.0 + record.duration.0);
            }
            Effect::LeaveQueue { n_tokens } => {
                if let Some(replica) = &mut self.nodes[index].replica {
                    replica.intake().leave_queue(n_tokens);
                }
            }
            Effect::Refuse { request, failure } | Effect::Close { request, failure: Some(failure), .. } => {
                if let Some(at) = arrival {
                    self.queue.push(at, Event::AttemptFailed(request, failure_of(&failure)));
                }
            }
            Effect::State(state) => self.advance_state(index, state),
            Effect::ReplaceExecutor { epoch } => {
                let node = &mut self.nodes[index];
                node.process += 1;
                node.tick_at = None;
                node.replica.iter_mut().for_each(|replica| replica.drop_steps());
                let at = self.now + self.config.replicas[index].executor_restart;
                let process = node.process;
                self.queue.push(at, Event::ExecutorMade { replica: index, process, epoch });
            }
            Effect::Accept(_)
            | Effect::Close { failure: None, .. }
            | Effect::EvaluateMasks(_)
            | Effect::OrderStore(_)
            | Effect::DeliverPlain { .. }
            | Effect::GiveUpExecutor { .. } => {}
        }
    }

    fn advance_state(&mut self, index: usize, state: EngineState) {
        if let Some(replica) = &mut self.nodes[index].replica {
            replica.intake().advance_state(state);
        }
    }

    /// A token on its way from a replica through the gateway to its client.
    #[inline]
    fn pass_token(&mut self, id: RequestId, token: TokenId, arrival: Timestamp) {
        let is_unfenced = self.sabotage == Some(Sabotage::NoFence);
        let Some((_, live)) = self.live.of_attempt_mut(id) else { return };
        if !live.runs(id) && !is_unfenced {
            return;
        }
        let index = live.n_passed;
        live.n_passed += 1;
        let at = self.delivery.pass(1, arrival) + self.config.gateway.client_network;
        let gap = live.clock.note(at);
        let number = live.number;
        if let Some(running) = live.running_mut()
            && !std::mem::replace(&mut running.has_answered, true)
        {
            self.queue.push(arrival, Event::FirstToken(id));
        }
        self.observer.token(number, index, token, at);
        if let Some(gap) = gap {
            self.observer.gap(gap);
        }
    }

    /// Sends another event of a stream to the gateway.
    fn deliver(&mut self, id: RequestId, event: StreamEvent, arrival: Option<Timestamp>) {
        let Some(arrival) = arrival else { return };
        let Some((_, live)) = self.live.of_attempt_mut(id) else { return };
        if !live.runs(id) {
            return;
        }
        match event {
            StreamEvent::Prompt { cached_tokens, .. } => {
                if !std::mem::replace(&mut live.is_prompt_done, true) {
                    live.cached_tokens = cached_tokens;
                }
            }
            StreamEvent::Finished { reason, timing, .. } => {
                if let (0, Some(first_step), State::Asking(running)) =
                    (live.n_failovers, timing.first_step, &live.state)
                {
                    live.first_step = Some(running.submitted + Nanos::from(first_step));
                }
                self.queue.push(arrival, Event::Finished(id, reason));
            }
            StreamEvent::Token { .. } | StreamEvent::Failed { .. } => {}
        }
    }
}

/// The gateway's kind of failure for a refusal of the intake.
fn kind_of_refusal(error: SubmitError) -> FailureKind {
    match error {
        SubmitError::Refused(Refusal::QueueFull { .. }) => FailureKind::QueueFull,
        SubmitError::Refused(_) => FailureKind::NeverFits,
        SubmitError::Draining => FailureKind::Stopped,
        SubmitError::Unhealthy => FailureKind::Unhealthy,
    }
}

/// The gateway's kind of failure for an engine's failure.
fn failure_of(failure: &EngineFailure) -> Failure {
    let (kind, is_retryable) = match failure {
        EngineFailure::Refused(Refusal::QueueFull { .. }) => (FailureKind::QueueFull, true),
        EngineFailure::Refused(_) => (FailureKind::NeverFits, false),
        EngineFailure::QueueTimedOut { .. } => (FailureKind::QueuedTooLong, false),
        EngineFailure::Stopped => (FailureKind::Stopped, true),
        EngineFailure::Unhealthy => (FailureKind::Unhealthy, true),
        EngineFailure::StepTimedOut { .. }
        | EngineFailure::StepPanicked
        | EngineFailure::StepFailed(_)
        | EngineFailure::DuplicateId => (FailureKind::Failed, true),
        EngineFailure::SequenceFailed(_) | EngineFailure::SlowReader { .. } => (FailureKind::Failed, false),
    };
    Failure { kind, is_retryable }
}
