//! A generation that survives its replica: when the replica fails on the way, another one goes on from the
//! output so far, and the reader sees one stream without a gap. Does not know why replicas fail, and decides
//! by `retryable` alone.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, Stream, StreamExt};
use throng_core::fleet::Tried;
use throng_core::request::TokenId;
use tokio::time::Instant;

use super::asking::{PlacementHints, SubmitOutcome, ask, has_ended, note_failure};
use super::{
    Continuations, Generation, ReplicaError, ReplicaEvent, ReplicaRequest, Replicas, ResumedContinuation,
    Timing, TraceSource,
};
use crate::dispatch::Placement;

/// Most replicas that may end under one request, each after a token of it: these are not counted above, since
/// processes end for reasons of their own, and a stream may live longer than many of them.
const MAX_REPLICAS_OUTLIVED: usize = 16;

/// One request over several replicas. Keeps the tokens that it has passed on.
pub struct Resumable {
    replicas: Replicas,
    /// The request that was submitted first.
    request: ReplicaRequest,
    hints: Arc<PlacementHints>,
    /// The replicas that it was submitted to and that count.
    tried: Tried,
    n_outlived: usize,
    /// A token has come since it was submitted last.
    has_progressed: bool,
    state: State,
    is_prompt_reported: bool,
    continuations: Vec<Progress>,
    arrived: Instant,
    /// Time at which the replica that runs it now was asked.
    submitted: Instant,
}

enum State {
    Running(Box<dyn Generation>, Placement),
    /// Another replica is asked to go on after a failure.
    Moving {
        asking: BoxFuture<'static, SubmitOutcome>,
        failure: ReplicaError,
    },
    Ended,
}

/// Output of one continuation that has been passed on.
#[derive(Debug)]
struct Progress {
    index: u32,
    output: Vec<TokenId>,
    first_token: Option<Instant>,
    is_aborted: bool,
    has_ended: bool,
}

impl Resumable {
    /// Submits a new request to one of the replicas.
    ///
    /// # Errors
    /// When no replica takes the request in: a refusal that holds for all of them, else that of the first one
    /// asked.
    pub async fn start(
        replicas: Replicas,
        request: ReplicaRequest,
        hints: PlacementHints,
    ) -> Result<Box<dyn Generation>, ReplicaError> {
        let (arrived, hints) = (Instant::now(), Arc::new(hints));
        replicas.dispatcher().request();
        let SubmitOutcome { result, tried } =
            ask(replicas.clone(), request.clone(), hints.clone(), Tried::default(), None).await;
        let (generation, placement) = result?;
        let progress = |index| Progress {
            index,
            output: Vec::new(),
            first_token: None,
            is_aborted: false,
            has_ended: false,
        };
        Ok(Box::new(Self {
            replicas,
            hints,
            tried,
            n_outlived: 0,
            has_progressed: false,
            state: State::Running(generation, placement),
            is_prompt_reported: false,
            continuations: (0..request.n_continuations()).map(progress).collect(),
            arrived,
            submitted: arrived,
            request,
        }))
    }

    /// The request for what is still to be done.
    fn rest(&self) -> ReplicaRequest {
        if !self.is_prompt_reported {
            return self.request.clone();
        }
        let live = self.continuations.iter().filter(|continuation| !continuation.has_ended);
        let resumed =
            live.map(|live| ResumedContinuation { index: live.index, output: live.output[..].into() });
        let mut sampling = self.request.sampling.clone();
        if sampling.prompt_logprobs.is_some() {
            Arc::make_mut(&mut sampling).prompt_logprobs = None;
        }
        let continuations = Continuations::Resumed(resumed.collect());
        ReplicaRequest { sampling, continuations, ..self.request.clone() }
    }

    /// Asks another replica to go on after a failure; `None` if that may not be done. A stream that a process
    /// left behind is always moved; a replica that fails at requests before their first token could be one of
    /// many, and is paid for as a refusal is.
    fn move_on(&mut self, failure: ReplicaError) -> Option<()> {
        let n_output: usize = self.continuations.iter().map(|continuation| continuation.output.len()).sum();
        tracing::warn!(error = %failure, n_output, "a replica failed");
        self.submitted = Instant::now();
        let has_ended = has_ended(failure.kind);
        let has_progressed = std::mem::take(&mut self.has_progressed);
        if let State::Running(_, placement) = std::mem::replace(&mut self.state, State::Ended) {
            let id = placement.replica();
            note_failure(placement, failure.kind);
            if has_progressed && has_ended && self.n_outlived < MAX_REPLICAS_OUTLIVED {
                self.n_outlived += 1;
                self.tried.outlive(id);
            } else if has_ended {
                self.tried.end(id);
            }
        }
        if !has_progressed && !has_ended && !self.replicas.dispatcher().may_retry() {
            return None;
        }
        let tried = std::mem::take(&mut self.tried);
        // A request that is pinned to a replica ends with it, and one that has a model to fall back to goes
        // there.
        let may_wait =
            has_ended && self.hints.pinned.is_none() && (n_output > 0 || self.hints.is_last_resort);
        let patience = self.replicas.patience().filter(|_| may_wait);
        let asking = ask(self.replicas.clone(), self.rest(), self.hints.clone(), tried, patience).boxed();
        self.state = State::Moving { asking, failure };
        Some(())
    }

    /// Notes what is passed on; `None` for what was passed on before.
    fn note(&mut self, event: ReplicaEvent) -> Option<ReplicaEvent> {
        match event {
            ReplicaEvent::Prompt { .. } => {
                (!std::mem::replace(&mut self.is_prompt_reported, true)).then_some(event)
            }
            ReplicaEvent::Token { index, ref report } => {
                let continuation = self.live(index)?;
                continuation.output.push(report.chosen.token);
                continuation.first_token.get_or_insert_with(Instant::now);
                self.has_progressed = true;
                if let State::Running(_, placement) = &mut self.state {
                    placement.token();
                }
                Some(event)
            }
            ReplicaEvent::Finished { index, reason, timing } => {
                let (arrived, delay) = (self.arrived, self.submitted - self.arrived);
                let continuation = self.live(index)?;
                continuation.has_ended = true;
                let first_token = continuation.first_token.map(|first| first - arrived);
                let timing = whole_timing(timing, delay, first_token);
                if self.continuations.iter().all(|continuation| continuation.has_ended) {
                    self.state = State::Ended;
                }
                Some(ReplicaEvent::Finished { index, reason, timing })
            }
            ReplicaEvent::Failed { .. } => {
                self.state = State::Ended;
                Some(event)
            }
        }
    }

    fn live(&mut self, index: u32) -> Option<&mut Progress> {
        let continuation = self.continuations.get_mut(index as usize)?;
        (!continuation.has_ended).then_some(continuation)
    }
}

/// The times of a continuation whose last replica was asked `delay` after the request arrived and measured
/// `timing`. Its first token was passed on after `first_token`, maybe from another replica.
fn whole_timing(timing: Timing, delay: Duration, first_token: Option<Duration>) -> Timing {
    if delay.is_zero() {
        return timing;
    }
    let timing = timing.delayed_by(delay);
    match first_token {
        Some(first) if first <= delay => Timing {
            first_step: None,
            first_token: Some(first),
            last_token: timing.last_token.or(Some(first)),
            ..timing
        },
        _ => timing,
    }
}

impl Stream for Resumable {
    type Item = ReplicaEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ReplicaEvent>> {
        let this = &mut *self;
        loop {
            match &mut this.state {
                State::Ended => return Poll::Ready(None),
                State::Moving { asking, failure } => {
                    let SubmitOutcome { result, tried } = ready!(asking.poll_unpin(cx));
                    this.tried = tried;
                    let Ok((mut generation, placement)) = result else {
                        let event = ReplicaEvent::Failed { error: failure.clone() };
                        return Poll::Ready(this.note(event));
                    };
                    for aborted in this.continuations.iter().filter(|c| c.is_aborted && !c.has_ended) {
                        generation.abort_continuation(aborted.index);
                    }
                    this.state = State::Running(generation, placement);
                }
                State::Running(generation, _) => match ready!(generation.poll_next_unpin(cx)) {
                    Some(ReplicaEvent::Failed { error: failure }) if failure.retryable => {
                        if this.move_on(failure.clone()).is_none() {
                            return Poll::Ready(this.note(ReplicaEvent::Failed { error: failure }));
                        }
                    }
                    Some(event) => {
                        if let Some(event) = this.note(event) {
                            return Poll::Ready(Some(event));
                        }
                    }
                    None => this.state = State::Ended,
                },
            }
        }
    }
}

impl Generation for Resumable {
    fn abort_continuation(&mut self, index: u32) {
        if let Some(continuation) = self.live(index) {
            continuation.is_aborted = true;
        }
        // While another replica is asked, the note is enough: it is told once it has taken the request in.
        if let State::Running(generation, _) = &mut self.state {
            generation.abort_continuation(index);
        }
    }

    fn trace(&self) -> Option<Arc<dyn TraceSource>> {
        match &self.state {
            State::Running(generation, _) => generation.trace(),
            State::Moving { .. } | State::Ended => None,
        }
    }
}

impl fmt::Debug for Resumable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tried, continuations, .. } = self;
        f.debug_struct("Resumable")
            .field("tried", tried)
            .field("continuations", continuations)
            .finish_non_exhaustive()
    }
}
