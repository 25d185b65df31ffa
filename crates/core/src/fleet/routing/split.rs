//! Prefill and decode apart: the roles of replicas, and whether a prompt is computed by another replica than
//! its answer. The estimate compares both ways for one request. Does not know which replicas there are.

use serde::{Deserialize, Serialize};

use super::load::{ReplicaId, SiteLoad};
use crate::time::Nanos;

/// Fewest prompt tokens to compute for which a request is split: fewer take about as long as the round trips
/// of a split.
pub const LEAST_SPLIT_TOKENS: u64 = 256;

/// Round trips of a split beyond those of a request to one replica: for the prompt, and for the blocks.
const N_ROUND_TRIPS: u64 = 2;

/// Round trip that counts where none was measured.
const ASSUMED_ROUND_TRIP: Nanos = Nanos::from_ms(1);

/// Part of requests that a replica is meant for. Every replica can compute both parts, so that a request
/// whose other replica fails is computed by one alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Long prompts, for the answers of other replicas.
    Prefill,
    /// Answers, with the prompts that are not worth a transfer.
    Decode,
    /// Both; also a role that a newer build reports.
    #[default]
    #[serde(other)]
    Both,
}

impl Role {
    /// Name in flags, settings and labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Both => "both",
        }
    }

    /// Whether this is the role of a replica that was given none.
    pub fn is_both(&self) -> bool {
        *self == Self::Both
    }
}

/// Facts that the choice between the two ways of a request depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitFacts {
    /// The replica of the answer, if it computes the prompt too.
    pub here: SiteLoad,
    /// The replica that would compute the prompt for it.
    pub there: SiteLoad,
    /// Number of blocks that the replica of the answer would take over.
    pub n_blocks: u64,
    /// Time of taking one of them over.
    pub block: Nanos,
    /// Round trip to the farther one of both, if measured.
    pub round_trip: Option<Nanos>,
}

impl SplitFacts {
    /// Predicts both ways.
    pub fn estimate(&self) -> SplitEstimate {
        let way = self.round_trip.unwrap_or(ASSUMED_ROUND_TRIP).0.saturating_mul(N_ROUND_TRIPS);
        SplitEstimate {
            n_tokens: self.here.n_uncached,
            here: self.here.prefill(),
            delay: self.here.delay(),
            there: self.there.prefill(),
            transfer: Nanos(self.block.0.saturating_mul(self.n_blocks).saturating_add(way)),
        }
    }
}

/// Predicted times of a prompt, computed by the replica of its answer or by another one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SplitEstimate {
    /// Prompt tokens that the replica of the answer would have to compute.
    pub n_tokens: u64,
    /// Time until it has computed them.
    pub here: Nanos,
    /// Time that this adds to the sequences that decode there, summed over these.
    pub delay: Nanos,
    /// Time until the other replica has computed the prompt.
    pub there: Nanos,
    /// Time of the blocks' way from there.
    pub transfer: Nanos,
}

impl SplitEstimate {
    /// Whether splitting costs the request less time than it saves the request and the others.
    pub fn pays(&self) -> bool {
        let split = self.there.0.saturating_add(self.transfer.0);
        split < self.here.0.saturating_add(self.delay.0)
    }
}

/// Reason why a request is split or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SplitVerdict {
    /// Splitting is predicted to take less time: the request is split.
    Pays,
    /// The replica of the answer would have few tokens to compute: the prompt is short, or mostly cached.
    FewTokens,
    /// Splitting is predicted to take more time.
    Slower,
    /// No replica for prompts is fit, or none in the region of the answer's.
    NoReplica,
    /// The replicas exchange no blocks.
    NoExchange,
}

impl SplitVerdict {
    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pays => "pays",
            Self::FewTokens => "few_tokens",
            Self::Slower => "slower",
            Self::NoReplica => "no_prefill_replica",
            Self::NoExchange => "no_exchange",
        }
    }
}

/// Whether a request is split, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitDecision {
    /// The reason.
    pub verdict: SplitVerdict,
    /// The replica for the prompt that was compared.
    pub prefill: Option<ReplicaId>,
    /// Predictions; of a request that was not compared, the number of tokens only.
    pub estimate: SplitEstimate,
}

impl SplitDecision {
    /// Compares both ways with each of these replicas, and decides for the best. `n_tokens` are those that
    /// the replica of the answer would compute.
    pub(super) fn of(n_tokens: u64, exchanges: bool, offers: &[(ReplicaId, Option<SplitFacts>)]) -> Self {
        let estimate = SplitEstimate { n_tokens, ..SplitEstimate::default() };
        let none = |verdict| Self { verdict, prefill: None, estimate };
        if n_tokens < LEAST_SPLIT_TOKENS {
            return none(SplitVerdict::FewTokens);
        }
        if offers.is_empty() {
            return none(SplitVerdict::NoReplica);
        }
        let compared = offers.iter().filter_map(|(id, facts)| Some((*id, (*facts)?.estimate())));
        let best = compared
            .filter(|_| exchanges)
            .min_by_key(|(id, estimate)| (estimate.there.0.saturating_add(estimate.transfer.0), *id));
        let Some((id, estimate)) = best else { return none(SplitVerdict::NoExchange) };
        let verdict = if estimate.pays() { SplitVerdict::Pays } else { SplitVerdict::Slower };
        Self { verdict, prefill: Some(id), estimate }
    }

    /// The replica that computes the prompt, if the request is split.
    pub fn prefill(&self) -> Option<ReplicaId> {
        self.prefill.filter(|_| self.verdict == SplitVerdict::Pays)
    }
}
