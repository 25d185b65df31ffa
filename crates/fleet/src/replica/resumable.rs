//! A generation that survives its replica: when the replica fails, another one continues from the output so
//! far, and the reader sees one stream without a gap. Does not know why replicas fail, and decides by
//! `retryable` alone.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, Stream, StreamExt};
use throng_core::fleet::{Failover, Rest, Retry, Tried};
use tokio::time::Instant;

use super::asking::{Patience, SubmitOutcome, ask};
use super::hints::PlacementHints;
use super::observed::ObservedRequest;
use super::split::{FirstPart, SplitCounts, SplitFallback, SplitReport, SplitTrace};
use super::{Continuations, Generation, ReplicaError, ReplicaEvent, ReplicaRequest, Replicas, TraceSource};
use crate::dispatch::Placement;

/// One request across several replicas, with the decisions of [`Failover`].
pub struct Resumable {
    replicas: Replicas,
    /// The original request.
    request: ReplicaRequest,
    hints: Arc<PlacementHints>,
    failover: Failover,
    state: State,
    arrived: Instant,
    /// The request in the recording, where there is one.
    observed: Option<ObservedRequest>,
    /// Whether another replica has computed the prompt, where replicas have roles.
    split: Option<Arc<SplitReport>>,
    /// Counts of the replica that takes over the prompt's blocks, until it has said how many came.
    taking_over: Option<Arc<SplitCounts>>,
}

enum State {
    Running(Box<dyn Generation>, Placement),
    /// Another replica is to continue after a failure.
    Moving {
        asking: BoxFuture<'static, SubmitOutcome>,
        failure: ReplicaError,
    },
    Ended,
}

impl Resumable {
    /// Submits a new request to one of the replicas.
    ///
    /// # Errors
    /// When no replica accepts the request: a refusal that holds for all of them, else that of the first
    /// replica asked.
    pub async fn start(
        replicas: Replicas,
        request: ReplicaRequest,
        hints: PlacementHints,
    ) -> Result<Box<dyn Generation>, ReplicaError> {
        let (arrived, hints) = (Instant::now(), Arc::new(hints));
        replicas.dispatcher().request();
        let mut observed = replicas.recording().and_then(|recording| recording.begin(&request));
        let may_wait = hints.pinned.is_none() && hints.is_last_resort;
        let patience = if may_wait { Patience::New } else { Patience::Never };
        let SubmitOutcome { result, tried, first_part } =
            ask(replicas.clone(), request.clone(), hints.clone(), Tried::default(), patience, true).await;
        let (generation, placement) = match result {
            Ok(taken) => taken,
            Err(error) => {
                let refused = ReplicaEvent::Failed { error: error.clone() };
                observed.iter_mut().for_each(|observed| observed.note(&refused));
                return Err(error);
            }
        };
        let mut failover = Failover::new(request.n_continuations(), tried);
        let (mut split, mut taking_over) = (None, None);
        if let Some(FirstPart { report, holder, counts, moved_early }) = first_part {
            if report.is_split() {
                failover.submitted_at(arrived.elapsed());
            }
            let is_taken = holder.is_some() && report.fallback.get().is_none() && !moved_early;
            taking_over = counts.filter(|_| is_taken);
            split = Some(report);
        }
        let state = State::Running(generation, placement);
        Ok(Box::new(Self {
            replicas,
            request,
            hints,
            failover,
            state,
            arrived,
            observed,
            split,
            taking_over,
        }))
    }

    /// The request for the remaining output.
    fn rest(&self) -> ReplicaRequest {
        match self.failover.rest(&self.request.sampling) {
            Some(Rest { sampling, continuations }) => {
                let continuations = Continuations::Resumed(continuations);
                ReplicaRequest { sampling, continuations, ..self.request.clone() }
            }
            None => self.request.clone(),
        }
    }

    /// Asks another replica to continue after a failure; `None` if that is not permitted.
    fn move_on(&mut self, failure: ReplicaError) -> Option<()> {
        tracing::warn!(error = %failure, n_output = self.failover.n_output(), "a replica failed");
        let has_ended = failure.kind.has_ended();
        let State::Running(_, placement) = std::mem::replace(&mut self.state, State::Ended) else {
            return None;
        };
        self.taking_over = None;
        let id = placement.replica();
        if failure.kind.is_fault() {
            placement.failed();
        }
        match self.failover.failed(id, has_ended, self.arrived.elapsed()) {
            Retry::Free => {}
            Retry::Paid if self.replicas.dispatcher().may_retry() => {}
            Retry::Paid | Retry::Never => return None,
        }
        let hints = &self.hints;
        let may_wait = self.failover.may_wait(has_ended, hints.pinned.is_some(), hints.is_last_resort);
        let patience = self.replicas.patience().filter(|_| may_wait).map_or(Patience::Never, Patience::Begun);
        let tried = self.failover.take_tried();
        let asking =
            ask(self.replicas.clone(), self.rest(), self.hints.clone(), tried, patience, false).boxed();
        self.state = State::Moving { asking, failure };
        Some(())
    }

    /// Records an event to pass on; `None` if it was passed on before.
    fn note(&mut self, event: ReplicaEvent) -> Option<ReplicaEvent> {
        let mut event = self.failover.note(event, self.arrived.elapsed())?;
        self.note_split(&mut event);
        self.observed.iter_mut().for_each(|observed| observed.note(&event));
        let is_over = match &event {
            ReplicaEvent::Token { .. } => {
                if let State::Running(_, placement) = &mut self.state {
                    placement.token();
                }
                false
            }
            ReplicaEvent::Finished { .. } => self.failover.has_ended(),
            ReplicaEvent::Failed { .. } => true,
            ReplicaEvent::Prompt { .. } => false,
        };
        if is_over {
            self.state = State::Ended;
        }
        Some(event)
    }
}

impl Resumable {
    /// Corrects the number of cached tokens of a split request, and notes whether its blocks were taken over.
    fn note_split(&mut self, event: &mut ReplicaEvent) {
        let Some(report) = &self.split else { return };
        match event {
            ReplicaEvent::Prompt { cached_tokens, .. } => *cached_tokens = report.counted(*cached_tokens),
            ReplicaEvent::Finished { timing, .. } => {
                let counts = self.taking_over.take().filter(|_| timing.pulled_tokens == 0);
                if let Some(counts) = counts {
                    counts.note_fallback(SplitFallback::NotPulled);
                    let _ = report.fallback.set(SplitFallback::NotPulled);
                }
            }
            ReplicaEvent::Token { .. } | ReplicaEvent::Failed { .. } => {}
        }
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
                    let SubmitOutcome { result, tried, .. } = ready!(asking.poll_unpin(cx));
                    this.failover.set_tried(tried);
                    let Ok((mut generation, placement)) = result else {
                        let event = ReplicaEvent::Failed { error: failure.clone() };
                        return Poll::Ready(this.note(event));
                    };
                    this.failover.aborted().for_each(|index| generation.abort_continuation(index));
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
        self.failover.abort(index);
        // During failover the recorded abort is enough: it is applied once the next replica has accepted the
        // request.
        if let State::Running(generation, _) = &mut self.state {
            generation.abort_continuation(index);
        }
    }

    fn trace(&self) -> Option<Arc<dyn TraceSource>> {
        let answer = match &self.state {
            State::Running(generation, _) => generation.trace(),
            State::Moving { .. } | State::Ended => None,
        };
        match &self.split {
            Some(report) => Some(Arc::new(SplitTrace { answer, report: report.clone() })),
            None => answer,
        }
    }
}

impl fmt::Debug for Resumable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resumable").field("failover", &self.failover).finish_non_exhaustive()
    }
}
