//! Begins and ends faults, and checks at the end of a run that nothing is left behind.

use throng_core::fleet::limits::{Denied, LimitKind, LimitRefusal};
use throng_core::time::{Nanos, Timestamp};

use super::{Cut, Event, Node, World};
use crate::fleet::Fault;
use crate::fleet::replica::Replica;

impl Node {
    /// Ends its process, and keeps the counts. The next one begins with an empty cache.
    pub(super) fn end_process(&mut self) {
        let Some(replica) = self.replica.take() else { return };
        self.lost += replica.core().scheduler().stats().counters;
        self.follows_cache = false;
        self.process += 1;
        self.tick_at = None;
    }
}

impl World<'_> {
    pub(super) fn begin_fault(&mut self, fault: usize) {
        match self.faults[fault] {
            Fault::Kill { replica, restart_after, .. } => {
                self.kill(replica);
                if let Some(after) = restart_after {
                    self.queue.push(self.now + after, Event::FaultEnd(fault));
                }
            }
            Fault::Slow { replica, lasting, factor, .. } => {
                if let Some(replica) = &mut self.nodes[replica].replica {
                    replica.slowdown = factor;
                }
                self.queue.push(self.now + lasting, Event::FaultEnd(fault));
            }
            Fault::Partition { replica, lasting, .. } => self.cut(replica, lasting, fault),
            Fault::FailStep { replica, .. } => {
                if let Some(replica) = &mut self.nodes[replica].replica {
                    replica.n_failing += 1;
                }
            }
        }
    }

    pub(super) fn end_fault(&mut self, fault: usize) {
        match self.faults[fault] {
            Fault::Kill { replica, .. } => self.restart(replica),
            Fault::Slow { replica, .. } => {
                if let Some(replica) = &mut self.nodes[replica].replica {
                    replica.slowdown = 1.0;
                }
            }
            Fault::Partition { replica, .. } => {
                let node = &mut self.nodes[replica];
                if node.cut.is_some_and(|cut| cut.until > self.now) {
                    // A later partition goes on.
                    return;
                }
                node.cut = None;
                if !node.is_connected {
                    self.connect_later(replica);
                }
            }
            Fault::FailStep { .. } => {}
        }
    }

    /// The process ends: the connection is closed after the data that it had sent.
    fn kill(&mut self, index: usize) {
        let Some(at) = self.arrival(index, self.now).or(Some(self.now)) else { return };
        let node = &mut self.nodes[index];
        if node.replica.is_none() {
            return;
        }
        node.end_process();
        let event = Event::LinkLost { replica: index, link: node.link };
        self.queue.push(at, event);
    }

    fn restart(&mut self, index: usize) {
        let rng = self.rng.fork();
        let node = &mut self.nodes[index];
        if node.replica.is_some() {
            return;
        }
        let mut replica = Replica::new(self.config.replicas[index].clone(), self.has_whole_batches, rng);
        replica.begin_at(self.now);
        node.replica = Some(replica);
        if node.cut.is_none() {
            self.connect_later(index);
        }
    }

    fn cut(&mut self, index: usize, lasting: Nanos, fault: usize) {
        let timeout = self.config.gateway.connection_timeout;
        let node = &mut self.nodes[index];
        let until = node.cut.map_or(Timestamp::default(), |cut| cut.until).max(self.now + lasting);
        node.cut = Some(Cut { until, is_lossy: lasting >= timeout });
        let link = node.link;
        if lasting >= timeout {
            self.queue.push(self.now + timeout, Event::LinkLost { replica: index, link });
        }
        self.queue.push(until, Event::FaultEnd(fault));
    }

    /// Checks that no state is left once all requests have ended.
    pub(super) fn check_rest(&mut self) -> Result<(), String> {
        self.settle_engines();
        for (index, node) in self.nodes.iter().enumerate() {
            let n_tokens = self.dispatch.router.n_tokens(node.id);
            let n_running = self.dispatch.n_running(node.id);
            if (n_tokens, n_running) != (0, 0) {
                return Err(format!(
                    "replica {index} keeps a load of {n_tokens} tokens, {n_running} attempts"
                ));
            }
            let Some(replica) = &node.replica else { continue };
            replica.core().scheduler().check_invariants()?;
            if !replica.core().scheduler().is_idle() {
                return Err(format!("replica {index} still has requests"));
            }
        }
        if let Some(gate) = &self.gate
            && gate.n_sequences() != (0, 0)
        {
            return Err(format!("the gate still counts {:?} sequences", gate.n_sequences()));
        }
        self.check_limits()
    }

    /// Lets engines end the steps that they have in flight, without new steps.
    fn settle_engines(&mut self) {
        const MAX_EVENTS: u32 = 100_000;
        for _ in 0..MAX_EVENTS {
            let is_settled = |node: &super::Node| {
                node.replica.as_ref().is_none_or(|replica| replica.core().scheduler().is_idle())
            };
            if self.nodes.iter().all(is_settled) {
                return;
            }
            let Some((at, event)) = self.queue.pop() else { return };
            self.now = self.now.max(at);
            self.handle(event);
        }
    }

    /// Checks that a tenant without running requests can again run its maximum at a time.
    fn check_limits(&mut self) -> Result<(), String> {
        // A minute later no rate limit counts any more.
        let now = self.now + Nanos::from_ms(120_000);
        for tenant in 0..self.tenants.len() as u32 {
            let scopes = self.scopes(tenant);
            let most = scopes.first().and_then(|scope| scope.limits.concurrent_requests).unwrap_or(0);
            let mut reservations = Vec::new();
            for n in 0..most {
                match self.limits.reserve(&scopes, 0, now) {
                    Ok(reservation) => reservations.push(reservation),
                    Err(Denied::Refused(refusal) | Denied::AskOthers(refusal)) => {
                        if let LimitRefusal::Exceeded { kind: LimitKind::ConcurrentRequests, .. } = refusal {
                            return Err(format!(
                                "tenant {tenant} has {n} of {most} places: a charge is kept"
                            ));
                        }
                        break;
                    }
                }
            }
            reservations.into_iter().for_each(|reservation| self.limits.cancel(reservation));
        }
        Ok(())
    }
}
