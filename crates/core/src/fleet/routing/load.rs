//! What one replica has to do: what it reported, and what this router sent to it. Does not know other
//! replicas.

use crate::scheduling::StepTime;

use crate::time::{Nanos, Timestamp};

/// A replica, numbered by the router that knows it. A number is never given out twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub u32);

/// A report older than this says nothing about the queue any more.
pub const REPORT_LIFETIME: Nanos = Nanos::from_ms(2_000);

/// Report of a replica about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadReport {
    /// Prompt tokens that it still has to compute.
    pub n_queued_tokens: u64,
    /// Sequences that decode.
    pub n_decoding: u32,
    /// Time of its steps.
    pub step_time: StepTime,
}

/// One request's part of its replica's load, given back when the request ends. It cannot be copied, so that
/// no load is given back twice.
#[derive(Debug)]
#[must_use = "the load stays counted until the ticket is given back"]
pub struct Ticket {
    pub(super) replica: ReplicaId,
    pub(super) n_tokens: u64,
    /// Zero as soon as the first token has come.
    pub(super) n_uncached: u64,
}

impl Ticket {
    /// Replica that the request runs on.
    pub fn replica(&self) -> ReplicaId {
        self.replica
    }
}

/// The load of one replica.
#[derive(Debug, Default)]
pub(super) struct Load {
    report: Option<(LoadReport, Timestamp)>,
    /// Tokens of requests sent from here that have not ended.
    n_tokens: u64,
    /// Uncached tokens of requests sent from here without a first token yet.
    n_uncached: u64,
    /// Requests sent from here that have their first token.
    n_decoding: u32,
}

impl Load {
    pub(super) fn report(&mut self, report: LoadReport, now: Timestamp) {
        self.report = Some((report, now));
    }

    /// Tokens of the requests sent from here that have not ended.
    pub(super) fn n_tokens(&self) -> u64 {
        self.n_tokens
    }

    /// The time to first token of one more request of which `n_uncached` prompt tokens are not cached.
    ///
    /// A report holds what all routers sent, but is late; what was sent from here is known at once, but is a
    /// part. The larger one is nearer to the truth, and nothing is counted twice.
    pub(super) fn predicted_ttft(&self, n_uncached: u64, now: Timestamp) -> Nanos {
        let step_time = self.report.map_or_else(StepTime::default, |(report, _)| report.step_time);
        self.ttft(&step_time, n_uncached, now)
    }

    /// [`Self::predicted_ttft`] if the replica were as fast as is usual.
    pub(super) fn usual_ttft(&self, n_uncached: u64, now: Timestamp) -> Nanos {
        self.ttft(&StepTime::default(), n_uncached, now)
    }

    fn ttft(&self, step_time: &StepTime, n_uncached: u64, now: Timestamp) -> Nanos {
        let fresh = self.report.filter(|(_, at)| now.since(*at) <= REPORT_LIFETIME).map(|(report, _)| report);
        let n_queued = fresh.map_or(0, |report| report.n_queued_tokens).max(self.n_uncached);
        let n_decoding = fresh.map_or(0, |report| report.n_decoding).max(self.n_decoding);
        step_time.prefill(n_queued.saturating_add(n_uncached), n_decoding)
    }

    pub(super) fn start(&mut self, ticket: &Ticket) {
        self.n_tokens += ticket.n_tokens;
        self.n_uncached += ticket.n_uncached;
    }

    /// Only the first token of a request changes anything.
    pub(super) fn first_token(&mut self, ticket: &mut Ticket) {
        if ticket.n_uncached > 0 {
            self.n_uncached -= std::mem::take(&mut ticket.n_uncached);
            self.n_decoding += 1;
        }
    }

    pub(super) fn end(&mut self, ticket: &Ticket) {
        self.n_tokens -= ticket.n_tokens;
        self.n_uncached -= ticket.n_uncached;
        self.n_decoding -= u32::from(ticket.n_uncached == 0);
    }
}
