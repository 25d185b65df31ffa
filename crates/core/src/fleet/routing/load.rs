//! Load of one replica: the load that it reported, and the requests that this router sent to it. Does not
//! know other replicas.

use crate::scheduling::StepTime;
use crate::time::{Nanos, Timestamp};

/// Number of a replica, given by its router and never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub u32);

/// Age of a report from which it no longer counts for the queue.
pub const REPORT_LIFETIME: Nanos = Nanos::from_ms(2_000);

/// Time for which a measured duration of transfers counts after the last transfer: links and loads change,
/// and a request that is not split measures nothing.
const MEASURE_LIFETIME: Nanos = Nanos::from_ms(60_000);

/// Longest step of an engine while sequences decode, which bounds its chunks of prompts: the default of
/// engines, which do not report theirs.
const STEP_TARGET: Nanos = Nanos::from_ms(120);

/// Fewest tokens of a chunk, on engines of any speed.
const LEAST_CHUNK_TOKENS: u64 = 16;

/// Bytes that a link of unmeasured speed transfers in a second: 1 Gbit/s.
const ASSUMED_LINK_BYTES: u64 = 125_000_000;

/// Report of a replica about itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Number of prompt tokens that are not computed yet.
    pub n_queued_tokens: u64,
    /// Number of sequences that decode.
    pub n_decoding: u32,
    /// Step time of the replica.
    pub step_time: StepTime,
    /// Blocks that it takes over from other replicas.
    pub exchange: ExchangeReport,
}

/// Report of a replica about the blocks that it takes over from others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExchangeReport {
    /// Bytes of a block; 0 if the replica exchanges none.
    pub block_bytes: u64,
    /// Number of blocks whose bytes a recurrent state has; 0 for a model without.
    pub state_blocks: u64,
    /// Number of blocks that it has taken over.
    pub n_pulled: u64,
    /// Measured time of taking one over; 0 before the first.
    pub block_time: Nanos,
}

/// Load of a replica, and the part of the prompt that it would compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SiteLoad {
    /// Step time of the replica.
    pub step_time: StepTime,
    /// Number of prompt tokens that are computed before.
    pub n_queued: u64,
    /// Number of sequences that decode.
    pub n_decoding: u32,
    /// Number of the prompt's tokens that are not cached there.
    pub n_uncached: u64,
}

impl SiteLoad {
    /// Time until the prompt is computed. While sequences decode, a chunk has no more tokens than fit into
    /// the time of a step.
    pub(super) fn prefill(&self) -> Nanos {
        let StepTime { fixed, per_prompt_token, per_sequence, max_step_tokens } = self.step_time;
        let decoding = per_sequence.0.saturating_mul(u64::from(self.n_decoding));
        let left = STEP_TARGET.0.saturating_sub(fixed.0.saturating_add(decoding));
        let in_time = left.checked_div(per_prompt_token.0).unwrap_or(u64::MAX).max(LEAST_CHUNK_TOKENS);
        let chunk = match self.n_decoding {
            0 => max_step_tokens,
            _ => max_step_tokens.min(u32::try_from(in_time).unwrap_or(u32::MAX)),
        };
        let in_chunks = StepTime { max_step_tokens: chunk, ..self.step_time };
        in_chunks.prefill(self.n_queued.saturating_add(self.n_uncached), self.n_decoding)
    }

    /// Time that the chunks of the prompt add to the sequences that decode beside them, summed over these.
    pub(super) fn delay(&self) -> Nanos {
        let chunks = self.step_time.per_prompt_token.0.saturating_mul(self.n_uncached);
        Nanos(chunks.saturating_mul(u64::from(self.n_decoding)))
    }
}

/// One request's part of its replica's load, given back when the request ends. It cannot be copied, so that
/// no load is given back twice.
#[derive(Debug)]
#[must_use = "the load stays counted until the ticket is given back"]
pub struct Ticket {
    pub(super) replica: ReplicaId,
    pub(super) n_tokens: u64,
    /// Uncached prompt tokens; zero once the first token has arrived.
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
    /// Time of the latest report of more blocks that were taken over.
    pulled_at: Option<Timestamp>,
    /// Number of tokens of the requests sent by this router that have not ended.
    n_tokens: u64,
    /// Number of uncached tokens of the requests sent by this router that have no first token yet.
    n_uncached: u64,
    /// Number of requests sent by this router that have their first token.
    n_decoding: u32,
}

impl Load {
    pub(super) fn report(&mut self, report: LoadReport, now: Timestamp) {
        let n_before = self.report.map_or(0, |(before, _)| before.exchange.n_pulled);
        if report.exchange.n_pulled > n_before {
            self.pulled_at = Some(now);
        }
        self.report = Some((report, now));
    }

    /// Tokens of the requests sent by this router that have not ended.
    pub(super) fn n_tokens(&self) -> u64 {
        self.n_tokens
    }

    /// The time to first token of one more request of which `n_uncached` prompt tokens are not cached.
    ///
    /// A report covers the requests of all routers, but is late; the own requests are counted at once, but
    /// are only a part. The larger of the two loads is used, so that nothing is counted twice.
    pub(super) fn predicted_ttft(&self, n_uncached: u64, now: Timestamp) -> Nanos {
        let step_time = self.report.map_or_else(StepTime::default, |(report, _)| report.step_time);
        self.ttft(&step_time, n_uncached, now)
    }

    /// [`Self::predicted_ttft`] with the default step time in place of the replica's.
    pub(super) fn usual_ttft(&self, n_uncached: u64, now: Timestamp) -> Nanos {
        self.ttft(&StepTime::default(), n_uncached, now)
    }

    fn ttft(&self, step_time: &StepTime, n_uncached: u64, now: Timestamp) -> Nanos {
        let SiteLoad { n_queued, n_decoding, .. } = self.site(n_uncached, now);
        step_time.prefill(n_queued.saturating_add(n_uncached), n_decoding)
    }

    /// The load that one more request of `n_uncached` prompt tokens would meet.
    pub(super) fn site(&self, n_uncached: u64, now: Timestamp) -> SiteLoad {
        let fresh = self.report.filter(|(_, at)| now.since(*at) <= REPORT_LIFETIME).map(|(report, _)| report);
        let n_queued = fresh.map_or(0, |report| report.n_queued_tokens).max(self.n_uncached);
        let n_decoding = fresh.map_or(0, |report| report.n_decoding).max(self.n_decoding);
        let step_time = self.report.map_or_else(StepTime::default, |(report, _)| report.step_time);
        SiteLoad { step_time, n_queued, n_decoding, n_uncached }
    }

    /// Bytes of a block; 0 if the replica exchanges none.
    pub(super) fn block_bytes(&self) -> u64 {
        self.report.map_or(0, |(report, _)| report.exchange.block_bytes)
    }

    /// Number of blocks whose bytes a recurrent state has; 0 for a model without.
    pub(super) fn state_blocks(&self) -> u64 {
        self.report.map_or(0, |(report, _)| report.exchange.state_blocks)
    }

    /// Expected time of taking a block over from another replica.
    pub(super) fn block_time(&self, now: Timestamp) -> Nanos {
        let measured = self.report.map_or(Nanos(0), |(report, _)| report.exchange.block_time);
        let is_recent = self.pulled_at.is_some_and(|at| now.since(at) <= MEASURE_LIFETIME);
        if is_recent && measured > Nanos(0) {
            return measured;
        }
        Nanos(self.block_bytes().saturating_mul(1_000_000_000) / ASSUMED_LINK_BYTES)
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
