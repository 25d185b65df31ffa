//! Submits a request to replicas one after the other until one accepts it. A request for which no replica
//! is left may wait for one to come back. Does not read the answer.

use std::sync::Arc;
use std::time::Duration;

use throng_core::fleet::{Retry, Tried};
use throng_http::awake::AwakeSleep;

use super::hints::PlacementHints;
use super::split::{FirstPart, compute_prompt};
use super::{Generation, Replica, ReplicaError, ReplicaErrorKind, ReplicaRequest, Replicas, Status};
use crate::dispatch::Placement;

/// Outcome of submitting a request to replicas, and the replicas tried.
pub(super) struct SubmitOutcome {
    /// The replica that accepted the request, or the reason why none did.
    pub result: Taken,
    /// Replicas that were tried.
    pub tried: Tried,
    /// First part of the request, where replicas have roles.
    pub first_part: Option<FirstPart>,
}

/// Time for which a request waits for a replica to come back when none is left.
#[derive(Debug, Clone, Copy)]
pub(super) enum Patience {
    /// No wait: another model or nobody answers.
    Never,
    /// Wait of a new request: until a few seconds after the last replica was lost.
    New,
    /// Wait of a request that has begun.
    Begun(Duration),
}

/// Tries replicas until one accepts the request or refuses it for a reason that holds for all. With
/// `patience`, a request for which no replica is left waits for one to come back. If it `may_split`, another
/// replica may compute its prompt first.
pub(super) async fn ask(
    replicas: Replicas,
    request: ReplicaRequest,
    hints: Arc<PlacementHints>,
    tried: Tried,
    patience: Patience,
    may_split: bool,
) -> SubmitOutcome {
    let mut round = Round {
        replicas: &replicas,
        request: &request,
        hints: &hints,
        tried,
        may_split,
        first_part: None,
        first_refusal: None,
        has_lost_one: false,
    };
    let mut taken = round.ask_all().await;
    let patience = match patience {
        // A replica that has refused the request is there, and says more than a wait does.
        Patience::New if round.tried.known().is_empty() => replicas.patience_with_new(round.has_lost_one),
        Patience::New | Patience::Never => None,
        Patience::Begun(patience) => Some(patience),
    };
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
    let Round { tried, first_part, first_refusal, .. } = round;
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
    SubmitOutcome { result, tried, first_part }
}

/// Outcome of a submission: a replica that has accepted the request, or a refusal that holds for all
/// replicas.
type Taken = Result<(Box<dyn Generation>, Placement), ReplicaError>;

/// One request being submitted to replicas.
struct Round<'a> {
    replicas: &'a Replicas,
    request: &'a ReplicaRequest,
    hints: &'a PlacementHints,
    tried: Tried,
    /// Whether another replica may compute the prompt, which happens once.
    may_split: bool,
    first_part: Option<FirstPart>,
    first_refusal: Option<ReplicaError>,
    /// Whether a replica that was ready ended while the request was submitted to it.
    has_lost_one: bool,
}

impl Round<'_> {
    /// Tries replicas that were not tried yet, then ready ones that have replaced an ended one.
    async fn ask_all(&mut self) -> Option<Taken> {
        let (replicas, request, hints) = (self.replicas, self.request, self.hints);
        while self.tried.may_ask() {
            let untried = replicas.place(&hints.wanted(request, &self.tried.all()));
            let placed =
                untried.or_else(|| replicas.place_ready(&hints.wanted(request, &self.tried.refusing())));
            let (placement, replica) = placed?;
            let (id, is_there) = (placement.replica(), replica.status() == Status::Ready);
            self.tried.ask(id);
            let prepared = self.prepared(&placement, &*replica).await;
            match replica.generate(prepared).await {
                Ok(generation) => return Some(Ok((generation, placement))),
                Err(refusal) if !refusal.retryable => return Some(Err(refusal)),
                Err(refusal) => {
                    let kind = self.note(refusal, placement);
                    self.has_lost_one |= is_there && kind.has_ended();
                    match self.tried.refuse(id, kind.has_ended(), is_there) {
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
        let wanted = self.hints.wanted(self.request, self.tried.known());
        let (placement, replica) = self.replicas.place_ready(&wanted)?;
        let id = placement.replica();
        self.tried.ask(id);
        let prepared = self.prepared(&placement, &*replica).await;
        match replica.generate(prepared).await {
            Ok(generation) => Some(Ok((generation, placement))),
            Err(refusal) if !refusal.retryable => Some(Err(refusal)),
            Err(refusal) => {
                match self.note(refusal, placement).has_ended() {
                    true => self.tried.end(id),
                    // All waiting requests arrive together when a replica comes back; it may have room
                    // later.
                    false => self.tried.release(id),
                }
                None
            }
        }
    }

    /// The request for a chosen replica, which learns who has more of the prompt in its cache: the replica
    /// that has computed the prompt for it, or another one.
    async fn prepared(&mut self, placement: &Placement, replica: &dyn Replica) -> ReplicaRequest {
        // A replica that will refuse the answer is not worth a prompt.
        if self.may_split && replica.check_room().is_ok() {
            self.may_split = false;
            let chosen = (placement, replica);
            self.first_part = compute_prompt(self.replicas, self.request, self.hints, chosen).await;
        }
        let computed = self.first_part.as_ref().and_then(|part| part.holder.clone());
        let holder = computed.or_else(|| self.replicas.holder_of(placement));
        ReplicaRequest { holder, ..self.request.clone() }
    }

    fn note(&mut self, refusal: ReplicaError, placement: Placement) -> ReplicaErrorKind {
        let kind = refusal.kind;
        self.first_refusal.get_or_insert(refusal);
        if kind.is_fault() {
            placement.failed();
        }
        kind
    }
}
