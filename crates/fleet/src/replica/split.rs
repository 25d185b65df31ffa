//! A prompt that one replica computes for the answer of another: the first part of a split request, its
//! report and its counts. The replica of the answer then takes the blocks over from the other one. Whatever
//! fails here, the replica of the answer computes the prompt itself. Does not decide which requests are
//! split.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::StreamExt;
use throng_core::fleet::routing::{ReplicaId, SplitDecision, SplitVerdict};
use throng_core::request::SamplingParams;
use throng_core::scheduling::batch::BLOCK_TOKENS;
use throng_core::timeline::request_trace::RequestTrace;
use throng_http::awake::within;
use throng_wire::Holder;
use tokio::time::Instant;

use super::early_blocks::{EarlyBlocks, move_early};
use super::hints::PlacementHints;
use super::{
    Continuations, PrefixHolder, PulledPrefix, Replica, ReplicaError, ReplicaErrorKind, ReplicaEvent,
    ReplicaRequest, Replicas, Status, TraceSource,
};
use crate::dispatch::{Placement, Wanted};

/// Time that the other replica has for the prompt, as a multiple of the predicted one: giving up early
/// computes the prompt twice.
const PATIENCE: u64 = 4;

/// Shortest time that it has: predictions of a replica that has computed little are rough. One that does not
/// answer at all is lost sooner, with its connection.
const MIN_PATIENCE: Duration = Duration::from_secs(15);

/// Longest time that it has.
const MAX_PATIENCE: Duration = Duration::from_secs(60);

/// Interval of checks whether the other replica still runs steps.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Reason why a split request was computed by the replica of its answer alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SplitFallback {
    /// The other replica refused the prompt: its queue is full, or it is being stopped.
    Refused,
    /// The other replica failed, or was lost.
    Failed,
    /// The other replica took too long.
    Late,
    /// The prompt was computed, and its blocks were not taken over.
    NotPulled,
}

impl SplitFallback {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::Refused, Self::Failed, Self::Late, Self::NotPulled];

    /// Name in reports and labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Late => "late",
            Self::NotPulled => "not_pulled",
        }
    }

    fn of(kind: ReplicaErrorKind) -> Self {
        match kind {
            ReplicaErrorKind::Refused(_)
            | ReplicaErrorKind::Overloaded { .. }
            | ReplicaErrorKind::QueuedTooLong
            | ReplicaErrorKind::Draining => Self::Refused,
            _ => Self::Failed,
        }
    }
}

/// Requests of a replica whose prompts other replicas computed first, since the gateway follows it.
#[derive(Debug, Default)]
pub struct SplitCounts {
    split: AtomicU64,
    early_tokens: AtomicU64,
    fallbacks: [AtomicU64; SplitFallback::ALL.len()],
}

impl SplitCounts {
    /// Number of requests that were split, those that fell back included.
    pub fn n_split(&self) -> u64 {
        self.split.load(Ordering::Relaxed)
    }

    /// Number of those that fell back, by reason.
    pub fn n_fallbacks(&self, reason: SplitFallback) -> u64 {
        self.fallbacks[reason as usize].load(Ordering::Relaxed)
    }

    /// Number of prompt tokens whose blocks were taken over while later ones were computed.
    pub fn n_early_tokens(&self) -> u64 {
        self.early_tokens.load(Ordering::Relaxed)
    }

    fn note_split(&self, early_tokens: u32) {
        self.split.fetch_add(1, Ordering::Relaxed);
        self.early_tokens.fetch_add(early_tokens.into(), Ordering::Relaxed);
    }

    /// Notes a request that fell back.
    pub(super) fn note_fallback(&self, reason: SplitFallback) {
        self.fallbacks[reason as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether a request was split, and why; of a split one also what became of its first part.
#[derive(Debug, Clone, PartialEq)]
pub struct SplitReport {
    /// The decision, with its predictions.
    pub decision: SplitDecision,
    /// Name of the replica that computed the prompt, or would have.
    pub prefill: Option<String>,
    /// Time that the first part took; 0 of a request that was not split.
    pub took: Duration,
    /// Reason why the replica of the answer computed the prompt after all.
    pub fallback: OnceLock<SplitFallback>,
    /// Number of prompt tokens that were cached at either replica before.
    pub n_cached: u32,
    /// Number of prompt tokens whose blocks were taken over while later ones were computed.
    pub n_early: u32,
}

impl SplitReport {
    /// Whether another replica was asked for the prompt.
    pub fn is_split(&self) -> bool {
        self.decision.verdict == SplitVerdict::Pays
    }

    /// Number of cached tokens that the request reports: those that were computed for it do not count.
    pub(super) fn counted(&self, cached_tokens: u32) -> u32 {
        let is_taken_over = matches!(self.fallback.get(), None | Some(SplitFallback::Late));
        if self.is_split() && is_taken_over { cached_tokens.min(self.n_cached) } else { cached_tokens }
    }
}

/// First part of a request.
#[derive(Debug)]
pub(super) struct FirstPart {
    /// Report on it.
    pub report: Arc<SplitReport>,
    /// The replica from which the prompt's blocks can be taken over.
    pub holder: Option<PrefixHolder>,
    /// Counts of the replica of the answer.
    pub counts: Option<Arc<SplitCounts>>,
    /// Whether blocks may have been taken over while others were computed.
    pub moved_early: bool,
}

/// Timeline of the replica of the answer, with the report of the first part.
#[derive(Debug)]
pub(super) struct SplitTrace {
    pub answer: Option<Arc<dyn TraceSource>>,
    pub report: Arc<SplitReport>,
}

impl TraceSource for SplitTrace {
    fn get(&self) -> Option<&RequestTrace> {
        self.answer.as_ref()?.get()
    }

    fn pulled(&self) -> Option<&PulledPrefix> {
        self.answer.as_ref()?.pulled()
    }

    fn split(&self) -> Option<&SplitReport> {
        Some(&self.report)
    }
}

/// Lets another replica compute the prompt of a request that `placement` chose `replica` for, where that is
/// decided; `None` where no replica has the role, or the request is none that can be split.
pub(super) async fn compute_prompt(
    replicas: &Replicas,
    request: &ReplicaRequest,
    hints: &PlacementHints,
    (placement, replica): (&Placement, &dyn Replica),
) -> Option<FirstPart> {
    let decision = placement.split()?;
    // The log-probabilities of a prompt come from whoever computes it.
    let is_new = matches!(request.continuations, Continuations::New { .. });
    if !is_new || request.sampling.prompt_logprobs.is_some() {
        return None;
    }
    let name = decision.prefill.and_then(|id| replicas.member(id)?.name());
    let mut report = SplitReport {
        decision,
        prefill: name,
        took: Duration::ZERO,
        fallback: OnceLock::new(),
        n_cached: placement.n_cached_tokens(),
        n_early: 0,
    };
    let (mut holder, counts, mut moved_early) = (None, replica.splits(), false);
    if let Some(id) = decision.prefill() {
        let began = Instant::now();
        let patience = Duration::from_nanos(decision.estimate.there.0.saturating_mul(PATIENCE));
        let computing = async {
            let other = Wanted { session: None, ..hints.wanted(request, &[]) };
            let (placement, replica) = replicas.place_at(&other, id).ok_or(ReplicaErrorKind::Unhealthy)?;
            computed_at(replicas, request, placement, &*replica).await
        };
        let computing = within(patience.clamp(MIN_PATIENCE, MAX_PATIENCE), computing);
        let own = (replica, placement.n_cached_tokens());
        let (computed, early) = while_moving(replicas, request, hints, id, own, computing).await;
        (report.n_early, moved_early) = (early.n_tokens.into_inner(), early.are_begun.into_inner());
        let result = computed.map_err(|_| SplitFallback::Late);
        match result.and_then(|computed| computed.map_err(SplitFallback::of)) {
            Ok(computed) => {
                report.n_cached = report.n_cached.max(computed);
                holder = holder_at(replicas, request, id).map(PrefixHolder::Worker);
            }
            Err(reason) => {
                // The part that it has computed need not be computed again.
                if reason == SplitFallback::Late {
                    holder = holder_at(replicas, request, id).map(PrefixHolder::Worker);
                }
                report.fallback = reason.into();
                counts.iter().for_each(|counts| counts.note_fallback(reason));
            }
        }
        report.took = began.elapsed();
        counts.iter().for_each(|counts| counts.note_split(report.n_early));
    }
    Some(FirstPart { report: Arc::new(report), holder, counts, moved_early })
}

/// Waits until the prompt is computed at the replica `from`, while the replica of the answer takes blocks
/// over. Returns the result with what came so.
async fn while_moving<T>(
    replicas: &Replicas,
    request: &ReplicaRequest,
    hints: &PlacementHints,
    from: ReplicaId,
    to: (&dyn Replica, u32),
    computing: impl Future<Output = T>,
) -> (T, EarlyBlocks) {
    let early = EarlyBlocks::default();
    let Some(holder) = holder_at(replicas, request, from) else { return (computing.await, early) };
    let computed = tokio::select! {
        biased;
        computed = computing => computed,
        never = move_early(replicas, request, hints, (from, &holder), to, &early) => match never {},
    };
    (computed, early)
}

/// The replica of this number as the one that has computed a prompt.
fn holder_at(replicas: &Replicas, request: &ReplicaRequest, id: ReplicaId) -> Option<Holder> {
    let (address, server_name) = replicas.member(id)?.block_address()?;
    let n_blocks = u32::try_from(request.prompt.len() / BLOCK_TOKENS).unwrap_or(u32::MAX);
    Some(Holder { address: address.to_string(), server_name, n_blocks })
}

/// Lets a replica compute the prompt, without a token of output, and returns how many tokens it had cached.
/// The attempt is one of the replica's, but no request of the client's.
async fn computed_at(
    replicas: &Replicas,
    request: &ReplicaRequest,
    mut placement: Placement,
    replica: &dyn Replica,
) -> Result<u32, ReplicaErrorKind> {
    let sampling = SamplingParams { max_tokens: 0, ..SamplingParams::default() };
    let prompt_only = ReplicaRequest {
        sampling: Arc::new(sampling),
        constraint: None,
        continuations: Continuations::New { n: 1 },
        holder: replicas.holder_of(&placement),
        ..request.clone()
    };
    let computing = async {
        let mut generation = replica.generate(prompt_only).await?;
        let mut n_cached = 0;
        while let Some(event) = generation.next().await {
            match event {
                ReplicaEvent::Prompt { cached_tokens, .. } => {
                    n_cached = cached_tokens;
                    placement.token();
                }
                ReplicaEvent::Failed { error } => return Err(error),
                ReplicaEvent::Token { .. } | ReplicaEvent::Finished { .. } => {}
            }
        }
        Ok::<u32, ReplicaError>(n_cached)
    };
    let stopping = async {
        while replica.status() == Status::Ready {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    };
    let outcome = tokio::select! {
        biased;
        outcome = computing => outcome,
        () = stopping => return Err(ReplicaErrorKind::Stopped),
    };
    match outcome {
        Ok(n_cached) => Ok(n_cached),
        Err(error) => {
            tracing::warn!(%error, "a prompt was not computed for another worker");
            if error.kind.is_fault() {
                placement.failed();
            }
            Err(error.kind)
        }
    }
}
