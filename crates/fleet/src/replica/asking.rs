//! Submits a request to replicas one after the other until one accepts it. A request for which no replica
//! is left may wait for one to come back. Does not read the answer.

use std::sync::Arc;
use std::time::Duration;

use throng_core::fleet::routing::ReplicaId;
use throng_core::fleet::{Retry, Tried};
use throng_core::scheduling::block_hash::{BlockHash, BlockKey};
use throng_http::awake::AwakeSleep;

use super::{Continuations, Generation, ReplicaError, ReplicaErrorKind, ReplicaRequest, Replicas, Status};
use crate::dispatch::{Placement, RegionBound, Wanted};

/// Constraints on the replica for a request.
#[derive(Debug)]
pub struct PlacementHints {
    /// Name of the only replica that may run the request.
    pub pinned: Option<Box<str>>,
    /// Regions that a residency rule binds the request to.
    pub bound: Option<Arc<dyn RegionBound>>,
    /// Whether no other model or engine can answer the request, so that it may wait for a replica before
    /// its first token too.
    pub is_last_resort: bool,
    /// Hashes of the prompt's full blocks, if routing depends on them.
    blocks: Vec<BlockKey>,
}

impl PlacementHints {
    /// Creates the hints of a request, with an optional replica and optional regions.
    pub fn of(
        request: &ReplicaRequest,
        replicas: &Replicas,
        pinned: Option<&str>,
        bound: Option<Arc<dyn RegionBound>>,
        is_last_resort: bool,
    ) -> Self {
        // Block hashes depend on the adapter's digest; a gateway of workers knows only its name.
        let blocks = if replicas.need_blocks() && request.adapter.is_none() {
            let root = BlockHash::root(&request.tenant, request.cache_salt.as_deref(), None);
            BlockHash::keys_of(root, &request.prompt, request.media.as_deref())
        } else {
            Vec::new()
        };
        Self { pinned: pinned.map(Box::from), bound, is_last_resort, blocks }
    }
}

/// Outcome of submitting a request to replicas, and the replicas tried.
pub(super) struct SubmitOutcome {
    /// The replica that accepted the request, or the reason why none did.
    pub result: Taken,
    /// Replicas that were tried.
    pub tried: Tried,
}

/// Tries replicas until one accepts the request or refuses it for a reason that holds for all. With
/// `patience`, a request for which no replica is left waits for one to come back.
pub(super) async fn ask(
    replicas: Replicas,
    request: ReplicaRequest,
    hints: Arc<PlacementHints>,
    tried: Tried,
    patience: Option<Duration>,
) -> SubmitOutcome {
    let mut round =
        Round { replicas: &replicas, request: &request, hints: &hints, tried, first_refusal: None };
    let mut taken = round.ask_all().await;
    if let Some(patience) = patience {
        let mut limit = AwakeSleep::new(patience);
        while taken.is_none() && round.tried.may_ask() {
            tokio::select! {
                biased;
                () = &mut limit => break,
                () = replicas.dispatcher().may_have_changed() => taken = round.ask_one_that_is_back().await,
            }
        }
    }
    let Round { tried, first_refusal, .. } = round;
    if taken.is_none()
        && let Some(bound) = &hints.bound
    {
        bound.refused("no replica in a permitted region has taken the request in");
    }
    let nobody = || ReplicaError {
        kind: ReplicaErrorKind::Unhealthy,
        retryable: false,
        message: "no replica is left to ask".into(),
    };
    let result = taken.unwrap_or_else(|| Err(first_refusal.unwrap_or_else(nobody)));
    SubmitOutcome { result, tried }
}

/// Outcome of a submission: a replica that has taken the request in, or a reason that holds for all.
type Taken = Result<(Box<dyn Generation>, Placement), ReplicaError>;

/// One request being submitted to replicas.
struct Round<'a> {
    replicas: &'a Replicas,
    request: &'a ReplicaRequest,
    hints: &'a PlacementHints,
    tried: Tried,
    first_refusal: Option<ReplicaError>,
}

impl Round<'_> {
    /// Tries replicas that were not tried yet, then ready ones that have replaced an ended one.
    async fn ask_all(&mut self) -> Option<Taken> {
        let (replicas, request, hints) = (self.replicas, self.request, self.hints);
        while self.tried.may_ask() {
            let untried = replicas.place(&wanted(request, hints, &self.tried.all()));
            let placed =
                untried.or_else(|| replicas.place_ready(&wanted(request, hints, &self.tried.refusing())));
            let (placement, replica) = placed?;
            let (id, is_there) = (placement.replica(), replica.status() == Status::Ready);
            self.tried.ask(id);
            match replica.generate(request.clone()).await {
                Ok(generation) => return Some(Ok((generation, placement))),
                Err(refusal) if !refusal.retryable => return Some(Err(refusal)),
                Err(refusal) => {
                    let kind = self.note(refusal, placement);
                    match self.tried.refuse(id, has_ended(kind), is_there) {
                        Retry::Free => {}
                        Retry::Paid if replicas.dispatcher().may_retry() => {}
                        Retry::Paid | Retry::Never => return None,
                    }
                }
            }
        }
        None
    }

    /// Tries one ready replica, even if it had ended before.
    async fn ask_one_that_is_back(&mut self) -> Option<Taken> {
        let wanted = wanted(self.request, self.hints, self.tried.known());
        let (placement, replica) = self.replicas.place_ready(&wanted)?;
        let id = placement.replica();
        self.tried.ask(id);
        match replica.generate(self.request.clone()).await {
            Ok(generation) => Some(Ok((generation, placement))),
            Err(refusal) if !refusal.retryable => Some(Err(refusal)),
            Err(refusal) => {
                match has_ended(self.note(refusal, placement)) {
                    true => self.tried.end(id),
                    // All waiting requests arrive together when a replica comes back; it may have room
                    // later.
                    false => self.tried.release(id),
                }
                None
            }
        }
    }

    fn note(&mut self, refusal: ReplicaError, placement: Placement) -> ReplicaErrorKind {
        let kind = refusal.kind;
        self.first_refusal.get_or_insert(refusal);
        note_failure(placement, kind);
        kind
    }
}

fn wanted<'a>(request: &ReplicaRequest, hints: &'a PlacementHints, tried: &'a [ReplicaId]) -> Wanted<'a> {
    let so_far: usize = match &request.continuations {
        Continuations::New { .. } => 0,
        Continuations::Resumed(resumed) => resumed.iter().map(|resumed| resumed.output.len()).sum(),
    };
    let n_tokens = u32::try_from(request.prompt.len() + so_far).unwrap_or(u32::MAX);
    let (pinned, bound) = (hints.pinned.as_deref(), hints.bound.as_deref());
    Wanted { n_tokens, blocks: &hints.blocks, pinned, bound, tried }
}

/// Whether a replica with this failure no longer runs any request.
pub(super) fn has_ended(kind: ReplicaErrorKind) -> bool {
    matches!(kind, ReplicaErrorKind::Unhealthy | ReplicaErrorKind::Stopped | ReplicaErrorKind::Draining)
}

/// Records a failure against the replica, unless it has no room or announced its shutdown.
pub(super) fn note_failure(placement: Placement, kind: ReplicaErrorKind) {
    if matches!(kind, ReplicaErrorKind::Failed | ReplicaErrorKind::Unhealthy) {
        placement.failed();
    }
}
