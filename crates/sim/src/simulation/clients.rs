//! The ends of requests: the resources that the gateway releases, the clients' results, and their next
//! actions.

use throng_core::request::{FinishReason, RequestId};
use throng_core::time::{Nanos, Timestamp};
use throng_core::timeline::latency::TokenClock;

use super::live::{Failure, FailureKind, Key, Live, State};
use super::sabotage::Sabotage;
use super::{Event, World};
use crate::outcome::{EndReason, RequestOutcome};
use crate::workload::EndedRequest;

impl World<'_> {
    /// The gateway receives the first token of an attempt.
    pub(super) fn first_token(&mut self, id: RequestId) {
        let now = self.now;
        let Some((_, live)) = self.live.of_attempt_mut(id) else { return };
        if !live.runs(id) {
            return;
        }
        if let Some(ticket) = &mut live.ticket
            && let Some(gate) = &mut self.gate
        {
            gate.first_token(ticket, now);
        }
        if let State::Asking(running) = &mut live.state {
            let took = now.since(running.began);
            self.dispatch.first_token(&mut running.attempt, took, true, now);
        }
    }

    /// The gateway receives the end of an attempt.
    pub(super) fn finished(&mut self, id: RequestId, reason: FinishReason) {
        let is_unfenced = self.sabotage == Some(Sabotage::NoFence);
        let Some((key, live)) = self.live.of_attempt_mut(id) else { return };
        if !live.runs(id) && !is_unfenced {
            return;
        }
        let reason = match reason {
            FinishReason::Stop { .. } => EndReason::Stop,
            FinishReason::Length => EndReason::Length,
            FinishReason::Abort => EndReason::GaveUp,
            FinishReason::Error => EndReason::Failed,
        };
        self.release(key, reason.is_whole());
        self.conclude(key, reason, None);
    }

    /// The limits or the gate refuse a request.
    pub(super) fn refuse(&mut self, key: Key, reason: EndReason, wait: Option<Nanos>) {
        self.conclude(key, reason, wait);
    }

    /// No replica finishes a request.
    pub(super) fn fail(&mut self, key: Key, failure: Failure) {
        self.release(key, false);
        let reason = match failure.kind {
            FailureKind::QueueFull => EndReason::QueueFull,
            FailureKind::NeverFits => EndReason::NeverFits,
            FailureKind::QueuedTooLong => EndReason::QueueTimeout,
            FailureKind::Failed | FailureKind::Unhealthy | FailureKind::Stopped => EndReason::Failed,
        };
        self.conclude(key, reason, None);
    }

    /// A client disconnects if it has waited too long since its request.
    pub(super) fn lose_patience(&mut self, key: Key, n_retries: u32) {
        let Some(live) = self.live.get(key) else { return };
        if live.n_retries != n_retries || live.n_passed > 0 {
            return;
        }
        if let Some(running) = live.running() {
            let (id, replica) = (running.id, running.replica);
            let network = self.config.gateway.client_network;
            if let Some(at) = self.arrival(replica, self.now + network) {
                self.queue.push(at, Event::Abort(id, replica));
            }
        }
        self.waiting.retain(|waiting| *waiting != key);
        if self.sabotage == Some(Sabotage::ForgottenCharge)
            && let Some(live) = self.live.get_mut(key)
        {
            std::mem::forget(live.reservation.take());
        }
        self.release(key, false);
        self.end(key, EndReason::GaveUp, self.now);
    }

    /// Releases the resources of a request at the gateway.
    fn release(&mut self, key: Key, is_whole: bool) {
        let now = self.now;
        let Some(live) = self.live.get_mut(key) else { return };
        let n_output = u64::from(live.n_passed);
        if let State::Asking(running) = std::mem::replace(&mut live.state, State::Outside) {
            self.dispatch.end(running.attempt);
        }
        let was_admitted = live.reservation.is_some() || live.ticket.is_some();
        if let (Some(gate), Some(ticket)) = (&mut self.gate, live.ticket.take()) {
            gate.end(ticket, n_output, is_whole);
        }
        if let Some(reservation) = live.reservation.take() {
            match live.was_taken_in {
                true => self.limits.settle(reservation, live.tokens.len() as u64 + n_output, now),
                false => self.limits.cancel(reservation),
            }
        }
        let (number, tenant) = (live.number, live.timed.request.tenant);
        if was_admitted {
            self.observer.released(number, tenant, now);
        }
    }

    /// Ends an answer: the client gets it, and retries if there is none.
    fn conclude(&mut self, key: Key, reason: EndReason, wait: Option<Nanos>) {
        let clients = self.config.clients;
        let seen_at = self.now + self.config.gateway.client_network;
        let Some(live) = self.live.get_mut(key) else { return };
        let seen_at = live.clock.last().map_or(seen_at, |last| last.max(seen_at));
        let may_succeed = !reason.is_whole() && !matches!(reason, EndReason::NeverFits | EndReason::GaveUp);
        if !may_succeed || live.n_retries >= clients.max_retries {
            return self.end(key, reason, seen_at);
        }
        let doubled = clients.backoff.0.saturating_mul(1 << live.n_retries.min(20));
        let pause = Nanos(doubled.max(wait.unwrap_or_default().0));
        live.n_retries += 1;
        self.observer.retried(live.number);
        // The answer begins anew; the client has waited since it asked first.
        live.clock = TokenClock::new(live.clock.sent());
        (live.n_passed, live.n_noted) = (0, 0);
        (live.is_prompt_done, live.was_taken_in) = (false, false);
        (live.failover, live.first_refusal) = (None, None);
        live.tried = Default::default();
        self.queue.push(seen_at + pause, Event::Retry(key));
    }

    fn end(&mut self, key: Key, reason: EndReason, at: Timestamp) {
        let Some(live) = self.live.remove(key) else { return };
        let outcome = outcome_of(&live, reason, at);
        self.observer.ended(&outcome);
        let ended =
            EndedRequest { tag: live.timed.tag, at, n_output: live.n_passed, is_whole: reason.is_whole() };
        if let Some(next) = self.workload.follow_up(&ended) {
            self.n_follow_ups += 1;
            self.queue.push(next.at.max(at), Event::Send(Box::new(next)));
        }
    }
}

fn outcome_of(live: &Live, reason: EndReason, at: Timestamp) -> RequestOutcome {
    RequestOutcome {
        number: live.number,
        tag: live.timed.tag,
        tenant: live.timed.request.tenant,
        sent_ns: live.clock.sent().as_ns(),
        queued: live.first_step.map(|first| first.since(live.received)),
        latency: live.clock.end(at, reason.is_whole()),
        n_prompt: live.tokens.len() as u32,
        n_cached: live.cached_tokens,
        n_output: live.n_passed,
        n_retries: live.n_retries,
        n_failovers: live.n_failovers,
        replica: live.last_replica,
        end: reason,
    }
}
