//! The path of a request to the replicas: network, tokenizing, limits, the overload gate.

use std::sync::Arc;

use throng_core::engine::END;
use throng_core::fleet::limits::{Denied, LimitRefusal};
use throng_core::fleet::overload::{AdmissionRequest, Overloaded, ServiceClass};
use throng_core::request::SamplingParams;
use throng_core::scheduling::block_hash::BlockHash;
use throng_core::time::Nanos;
use throng_core::timeline::latency::TokenClock;

use super::live::{Key, Live, State};
use super::{Event, World};
use crate::outcome::EndReason;
use crate::workload::TimedRequest;

/// Maximum number of sampling parameters that requests share.
const MAX_SAMPLINGS: usize = 1 << 14;

impl World<'_> {
    /// A client sends a request for the first time.
    pub(super) fn send(&mut self, timed: TimedRequest) {
        self.observer.sent(self.n_requests, &timed);
        let vocabulary_size = self.config.replicas[0].capacity.vocabulary_size;
        let request = &timed.request;
        let sampling = self.sampling(request.max_tokens);
        let live = Live {
            number: self.n_requests,
            tokens: request.prompt_tokens(vocabulary_size).into(),
            sampling,
            blocks: Vec::new(),
            n_retries: 0,
            n_failovers: 0,
            clock: TokenClock::new(self.now),
            n_passed: 0,
            n_noted: 0,
            cached_tokens: 0,
            is_prompt_done: false,
            received: self.now,
            first_step: None,
            reservation: None,
            ticket: None,
            was_taken_in: false,
            tried: Default::default(),
            failover: None,
            first_refusal: None,
            last_replica: None,
            state: State::Outside,
            timed,
        };
        self.n_requests += 1;
        let key = self.live.insert(live);
        self.send_again(key);
    }

    /// Sampling parameters of a request. Requests share them, so that reading them misses no cache.
    fn sampling(&mut self, max_tokens: u32) -> Arc<SamplingParams> {
        if let Some(sampling) = self.samplings.get(&max_tokens) {
            return Arc::clone(sampling);
        }
        let sampling = Arc::new(SamplingParams {
            temperature: 0.0,
            max_tokens,
            eos_token_ids: vec![END],
            ..SamplingParams::default()
        });
        if self.samplings.len() < MAX_SAMPLINGS {
            self.samplings.insert(max_tokens, Arc::clone(&sampling));
        }
        sampling
    }

    /// A client sends a request, maybe not for the first time.
    pub(super) fn send_again(&mut self, key: Key) {
        let Some(live) = self.live.get(key) else { return };
        if let Some(patience) = self.config.clients.patience {
            let event = Event::Patience { key, n_retries: live.n_retries };
            self.queue.push(self.now + patience, event);
        }
        match self.config.gateway.client_network {
            Nanos(0) => self.receive(key),
            network => self.queue.push(self.now + network, Event::Receive(key)),
        }
    }

    /// The gateway receives a request: its prompt is tokenized.
    pub(super) fn receive(&mut self, key: Key) {
        let Some(live) = self.live.get_mut(key) else { return };
        live.received = self.now;
        let ready = self.tokenizing.pass(live.tokens.len() as u64, self.now);
        if ready == self.now { self.enter(key) } else { self.queue.push(ready, Event::Tokenized(key)) }
    }

    /// A tokenized request passes the limits and the gate, then a replica is tried.
    pub(super) fn enter(&mut self, key: Key) {
        let Some(live) = self.live.get(key) else { return };
        let (tenant, n_prompt) = (live.timed.request.tenant, live.tokens.len() as u64);
        let n_most = n_prompt + u64::from(live.timed.request.max_tokens);
        let scopes = self.scopes(tenant);
        let reservation = match self.limits.reserve(&scopes, n_most, self.now) {
            Ok(reservation) => reservation,
            Err(Denied::Refused(refusal) | Denied::AskOthers(refusal)) => {
                let (reason, wait) = match refusal {
                    LimitRefusal::Exceeded { wait, .. } => (EndReason::RateLimited, wait),
                    LimitRefusal::NeverFits { .. } => (EndReason::NeverFits, None),
                    LimitRefusal::TooManyScopes => (EndReason::RateLimited, None),
                };
                return self.refuse(key, reason, wait);
            }
        };
        let name = self.tenant(tenant);
        let Some(live) = self.live.get_mut(key) else { return };
        let ask = AdmissionRequest {
            tenant: name,
            class: ServiceClass::Default,
            n_sequences: 1,
            n_prompt_tokens: n_prompt,
            max_tokens: live.timed.request.max_tokens,
            deadline: None,
        };
        match self.gate.as_mut().map(|gate| gate.admit(&ask, self.now)).transpose() {
            Ok(ticket) => live.ticket = ticket,
            Err(overloaded) => {
                self.limits.cancel(reservation);
                let (reason, wait) = match overloaded {
                    Overloaded::Busy { retry_after, .. } => (EndReason::Overloaded, Some(retry_after)),
                    Overloaded::TooSlow { .. } => (EndReason::Overloaded, None),
                };
                return self.refuse(key, reason, wait);
            }
        }
        live.reservation = Some(reservation);
        if self.uses_blocks && live.blocks.is_empty() {
            let root = BlockHash::root(&ask.tenant, None, None);
            live.blocks = BlockHash::keys_of(root, &live.tokens, None);
        }
        let number = live.number;
        self.observer.admitted(number, tenant, self.now);
        self.dispatch.request();
        self.ask(key, None);
    }
}
