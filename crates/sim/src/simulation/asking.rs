//! Choice of replicas for a request, one after the other, and reaction to failures, with the calls of the
//! fleet's own code to `Dispatch`, `Tried` and `Failover`.

use std::sync::Arc;

use throng_core::fleet::replica::{StreamEvent, TokenReport};
use throng_core::fleet::routing::ReplicaId;
use throng_core::fleet::{Attempt, Demand, Failover, Retry};
use throng_core::request::{Request, RequestId, TokenId};
use throng_core::scheduling::batch::TokenLogprob;
use throng_core::time::{Nanos, Timestamp};

use super::live::{Failure, FailureKind, Key, Live, Running, State, attempt_id};
use super::sabotage::Sabotage;
use super::{Event, World};

/// No replica was left to try.
const NOBODY: Failure = Failure { kind: FailureKind::Unhealthy, is_retryable: false };

/// Attempt at a replica that has refused.
#[derive(Debug, Clone, Copy)]
struct Asked {
    was_there: bool,
    until: Option<Timestamp>,
    is_back: bool,
}

impl World<'_> {
    /// Asks the next replica. With `until`, a request waits until then if no replica is left.
    pub(super) fn ask(&mut self, key: Key, until: Option<Timestamp>) {
        self.note_unserved();
        let Some(live) = self.live.get(key) else { return };
        if live.tried.may_ask() {
            let tried = live.tried.all();
            let placed = self.place(key, &tried);
            let placed = placed.or_else(|| {
                let refusing = self.live.get(key)?.tried.refusing();
                self.place_ready(key, &refusing)
            });
            if let Some(attempt) = placed {
                return self.start_attempt(key, attempt, until, false);
            }
        }
        self.wait_or_fail(key, until);
    }

    /// Asks a replica that is ready, including ones that have ended before.
    pub(super) fn ask_one_that_is_back(&mut self, key: Key) {
        let Some(live) = self.live.get(key) else { return };
        let State::Waiting { until } = live.state else { return };
        if until <= self.now || !live.tried.may_ask() {
            return self.wait_or_fail(key, None);
        }
        let known = live.tried.known().to_vec();
        if let Some(attempt) = self.place_ready(key, &known) {
            self.start_attempt(key, attempt, Some(until), true);
        }
    }

    fn wait_or_fail(&mut self, key: Key, until: Option<Timestamp>) {
        let Some(live) = self.live.get_mut(key) else { return };
        match until.filter(|until| *until > self.now && live.tried.may_ask()) {
            Some(until) => {
                live.state = State::Waiting { until };
                if !self.waiting.contains(&key) {
                    self.waiting.push(key);
                }
            }
            None => {
                let failure = live.first_refusal.unwrap_or(NOBODY);
                self.fail(key, failure);
            }
        }
    }

    /// Tries waiting requests again at the replicas.
    pub(super) fn look_again(&mut self) {
        if self.sabotage == Some(Sabotage::ForgottenWaiters) {
            return;
        }
        for key in std::mem::take(&mut self.waiting) {
            self.ask_one_that_is_back(key);
            let waits = |live: &Live| matches!(live.state, State::Waiting { .. });
            if self.live.get(key).is_some_and(waits) && !self.waiting.contains(&key) {
                self.waiting.push(key);
            }
        }
    }

    /// The replica of the next attempt among those that answer, in the product's order.
    fn place(&mut self, key: Key, tried: &[ReplicaId]) -> Option<Attempt> {
        let live = self.live.get(key)?;
        let demand = demand(live, tried);
        let untried = self.nodes.iter().filter(|node| !tried.contains(&node.id));
        let connected: Vec<ReplicaId> =
            untried.clone().filter(|node| node.is_connected).map(|node| node.id).collect();
        if !connected.is_empty() {
            return self.dispatch.place_answering(&demand, &connected, self.now);
        }
        let others: Vec<ReplicaId> = untried.map(|node| node.id).collect();
        self.dispatch.place_among(&demand, &others, self.now)
    }

    fn place_ready(&mut self, key: Key, tried: &[ReplicaId]) -> Option<Attempt> {
        let live = self.live.get(key)?;
        let demand = demand(live, tried);
        let mut ready = self.dispatch.board.ready();
        ready.retain(|id| self.nodes[self.node_of[id]].is_connected);
        self.dispatch.place_among(&demand, &ready, self.now)
    }

    fn start_attempt(&mut self, key: Key, attempt: Attempt, until: Option<Timestamp>, is_back: bool) {
        let index = self.node_of[&attempt.choice.replica];
        let was_there = self.nodes[index].is_connected;
        self.n_attempts = self.n_attempts.wrapping_add(1);
        let id = attempt_id(self.n_attempts, key);
        let Some(live) = self.live.get_mut(key) else { return };
        live.tried.ask(attempt.choice.replica);
        live.last_replica = Some(index as u32);
        live.state = State::Asking(Running {
            attempt,
            replica: index,
            id,
            began: self.now,
            taken_in: None,
            was_there,
            until,
            is_back,
            has_answered: false,
            submitted: self.now,
        });
        match self.arrival(index, self.now) {
            Some(at) => self.queue.push(at, Event::Submit(id, index)),
            // It is lost, which the end of the connection tells.
            None if was_there => {}
            None => self.fail_later(id, index, FailureKind::Unhealthy),
        }
    }

    /// Time at which a message between gateway and replica arrives; `None` for one that is lost.
    pub(super) fn arrival(&self, index: usize, now: Timestamp) -> Option<Timestamp> {
        let node = &self.nodes[index];
        let network = self.config.replicas[index].network;
        match node.cut {
            None => Some(now + network),
            Some(cut) => (!cut.is_lossy).then(|| cut.until + network),
        }
    }

    pub(super) fn fail_later(&mut self, id: RequestId, index: usize, kind: FailureKind) {
        let failure = Failure { kind, is_retryable: !matches!(kind, FailureKind::NeverFits) };
        let network = self.config.replicas[index].network;
        let at = self.arrival(index, self.now).unwrap_or(self.now + network);
        self.queue.push(at, Event::AttemptFailed(id, failure));
    }

    /// The request in the form of its present attempt.
    pub(super) fn request_of(&mut self, id: RequestId) -> Option<Request> {
        let (_, live) = self.live.of_attempt_mut(id)?;
        if !live.runs(id) {
            return None;
        }
        let rest = live.failover.as_ref().and_then(|failover| failover.rest(&live.sampling));
        let (sampling, outputs_so_far) = match rest {
            None => (live.sampling.clone(), Vec::new()),
            Some(rest) => {
                let outputs = rest.continuations.into_iter().map(|one| Some(one.output)).collect();
                (rest.sampling, outputs)
            }
        };
        let (tenant, priority) = (live.timed.request.tenant, live.timed.request.priority);
        let prompt = Arc::clone(&live.tokens);
        let plain = Request::plain(id, prompt, throng_core::request::SamplingParams::default());
        Some(Request {
            tenant: self.tenant(tenant),
            priority: throng_core::request::Priority(priority),
            sampling,
            outputs_so_far,
            ..plain
        })
    }

    /// The gateway is notified that a replica does not finish an attempt.
    pub(super) fn attempt_failed(&mut self, id: RequestId, failure: Failure) {
        let Some((key, live)) = self.live.of_attempt_mut(id) else { return };
        if !live.runs(id) {
            return;
        }
        let State::Asking(running) = std::mem::replace(&mut live.state, State::Outside) else { return };
        let replica = running.attempt.choice.replica;
        let was_taken_in = running.taken_in.is_some_and(|at| at <= self.now);
        if failure.kind.is_judged() {
            self.dispatch.board.fail(replica, self.now);
        }
        let asked = Asked { was_there: running.was_there, until: running.until, is_back: running.is_back };
        if was_taken_in || self.sabotage != Some(Sabotage::LeakedLoad) {
            self.dispatch.end(running.attempt);
        }
        if was_taken_in {
            self.move_on(key, replica, failure);
        } else {
            self.refused(key, replica, failure, asked);
        }
    }

    /// A replica did not take a request in.
    fn refused(&mut self, key: Key, replica: ReplicaId, failure: Failure, asked: Asked) {
        let Some(live) = self.live.get_mut(key) else { return };
        live.first_refusal.get_or_insert(failure);
        if !failure.is_retryable {
            return self.fail(key, failure);
        }
        let (has_ended, until) = (failure.kind.has_ended(), asked.until);
        if asked.is_back {
            match has_ended {
                true => live.tried.end(replica),
                // Those that wait come back together: there may be room later.
                false => live.tried.release(replica),
            }
            return self.wait_or_fail(key, until);
        }
        match live.tried.refuse(replica, has_ended, asked.was_there) {
            Retry::Free => self.ask(key, until),
            Retry::Paid if self.dispatch.may_retry() => self.ask(key, until),
            Retry::Paid | Retry::Never => self.wait_or_fail(key, until),
        }
    }

    /// A replica that had admitted a request does not finish it: another one continues it.
    fn move_on(&mut self, key: Key, replica: ReplicaId, failure: Failure) {
        if !failure.is_retryable {
            return self.fail(key, failure);
        }
        let vocabulary_size = self.config.replicas[0].capacity.vocabulary_size;
        let (now, patience, sabotage) = (self.now, self.config.gateway.patience, self.sabotage);
        let Some(live) = self.live.get_mut(key) else { return };
        live.n_failovers += 1;
        note_passed(live, now, vocabulary_size, sabotage);
        let age = live.age(now);
        let Some(failover) = &mut live.failover else { return };
        let has_ended = failure.kind.has_ended();
        let retry = failover.failed(replica, has_ended, age);
        let may_wait = failover.may_wait(has_ended, false, true);
        live.tried = failover.take_tried();
        if sabotage == Some(Sabotage::EarlySettlement)
            && let Some(reservation) = live.reservation.take()
        {
            self.limits.settle(reservation, 0, now);
        }
        let may_go_on = match retry {
            Retry::Free => true,
            Retry::Paid => self.dispatch.may_retry(),
            Retry::Never => false,
        };
        let Some(live) = self.live.get_mut(key) else { return };
        if !may_go_on {
            return self.fail(key, failure);
        }
        live.first_refusal = Some(failure);
        self.ask(key, may_wait.then_some(now + patience));
    }
}

fn demand<'a>(live: &'a Live, tried: &'a [ReplicaId]) -> Demand<'a> {
    let n_tokens = live.tokens.len() as u32 + live.n_passed;
    Demand { n_tokens, blocks: &live.blocks, session: None, pinned: None, regions: None, tried }
}

/// Reports to the failover the events that were passed on since its last report.
fn note_passed(live: &mut Live, now: Timestamp, vocabulary_size: u32, sabotage: Option<Sabotage>) {
    let tried = std::mem::take(&mut live.tried);
    match &mut live.failover {
        Some(failover) => failover.set_tried(tried),
        None => live.failover = Some(Failover::new(1, tried)),
    }
    let age = live.age(now);
    let Some(failover) = &mut live.failover else { return };
    if live.is_prompt_done {
        failover.note::<()>(StreamEvent::Prompt { cached_tokens: 0, logprobs: Vec::new() }, age);
    }
    let mut end = live.n_passed;
    match sabotage {
        Some(Sabotage::RepeatedToken) => end = end.saturating_sub(1).max(live.n_noted),
        Some(Sabotage::SkippedToken) => end += u32::from(end + 1 < live.timed.request.output.n_tokens),
        _ => {}
    }
    for index in live.n_noted..end {
        let token: TokenId = live.timed.request.output_token(index, vocabulary_size);
        let chosen = TokenLogprob { token, logprob: 0.0, rank: 0 };
        let report = TokenReport { chosen, top: Vec::new() };
        failover.note::<()>(StreamEvent::Token { index: 0, report }, age);
    }
    live.n_noted = end;
}

/// Time that a new connection takes.
pub(super) const RECONNECT: Nanos = Nanos::from_ms(50);
