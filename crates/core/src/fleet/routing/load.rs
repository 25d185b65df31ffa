//! Load of one replica: the load that it reported, and the requests that this router sent to it. Does not
//! know other replicas.

use crate::scheduling::StepTime;

use crate::time::{Nanos, Timestamp};

/// Number of a replica, given by its router and never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub u32);

/// Age of a report from which it no longer counts for the queue.
pub const REPORT_LIFETIME: Nanos = Nanos::from_ms(2_000);

/// Report of a replica about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadReport {
    /// Number of prompt tokens that are not computed yet.
    pub n_queued_tokens: u64,
    /// Number of sequences that decode.
    pub n_decoding: u32,
    /// Step time of the replica.
    pub step_time: StepTime,
}

/// One request's part of its replica's load, given back when the request ends. It cannot be copied, so that
/// no load is given back twice.
#[derive(Debug)]
#[must_use = "the load stays counted until the ticket is given back"]
pub struct Ticket {
    pub(super) replica: ReplicaId,
    pub(super) n_tokens: u64,
    /// Uncached prompt tokens; zero as soon as the first token has come.
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
    /// Tokens of the requests sent by this router that have not ended.
    n_tokens: u64,
    /// Uncached tokens of the requests sent by this router that have no first token yet.
    n_uncached: u64,
    /// Number of requests sent by this router that have their first token.
    n_decoding: u32,
}

impl Load {
    pub(super) fn report(&mut self, report: LoadReport, now: Timestamp) {
        self.report = Some((report, now));
    }

    /// Tokens of the requests sent by this router that have not ended.
    pub(super) fn n_tokens(&self) -> u64 {
        self.n_tokens
    }

    /// The time to first token of one more request of which `n_uncached` prompt tokens are not cached.
    ///
    /// A report covers the requests of all routers, but is late; the own requests are known at once, but
    /// are only a part. The larger of the two loads is taken, so that nothing is counted twice.
    pub(super) fn predicted_ttft(&self, n_uncached: u64, now: Timestamp) -> Nanos {
        let step_time = self.report.map_or_else(StepTime::default, |(report, _)| report.step_time);
        self.ttft(&step_time, n_uncached, now)
    }

    /// [`Self::predicted_ttft`] with the default step time in place of the replica's.
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

    /// Notes the first token of a request; later calls change nothing.
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
