//! A replica in this process: converts between the fleet's types and those of the engine.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use futures_util::future::{BoxFuture, FutureExt, ready};
use throng_core::constraint::ConstraintError;
use throng_core::request::{Request, RequestId, TokenId};
use throng_core::scheduling::admission::Refusal;
use throng_core::scheduling::batch::SequenceError;
use throng_core::scheduling::block_pool::{CacheCursor, CacheNews};
use throng_core::timeline::request_trace::RequestTrace;
use throng_engine::{
    EngineFailure, EngineHandle, EngineStats, IterationTokens, SubmitError, TokenStream, TraceSlot,
};

use super::{
    Continuations, Evictions, Generation, Load, PrefixHolder, Replica, ReplicaError, ReplicaErrorKind,
    ReplicaEvent, ReplicaRequest, ResumedContinuation, Status, StepTokens, Totals, TraceSource,
};

/// An engine in this process.
#[derive(Debug, Clone)]
pub struct LocalReplica(pub EngineHandle);

impl Replica for LocalReplica {
    fn generate(
        &self,
        request: ReplicaRequest,
    ) -> BoxFuture<'static, Result<Box<dyn Generation>, ReplicaError>> {
        let request = engine_request(request, self.0.next_request_id());
        let submitted = self.0.submit(request).map(|stream| Box::new(LocalGeneration(stream)) as _);
        ready(submitted.map_err(ReplicaError::from)).boxed()
    }

    fn check_room(&self) -> Result<(), ReplicaError> {
        Ok(self.0.check_room()?)
    }

    fn load(&self) -> Load {
        let EngineStats { scheduler, machine, iteration_tokens, failures, executor_restarts, .. } =
            self.0.stats();
        let counters = scheduler.counters;
        Load {
            n_running: scheduler.running,
            n_waiting: scheduler.waiting.max(scheduler.queued_requests),
            n_paused: scheduler.paused,
            n_queued_tokens: (scheduler.queued_tokens + scheduler.prefilling_tokens) as u64,
            machine,
            total_blocks: scheduler.total_blocks,
            used_blocks: scheduler.used_blocks,
            cached_blocks: scheduler.cached_blocks,
            marked_blocks: scheduler.marked_blocks,
            totals: Totals {
                steps: counters.steps,
                prompt_tokens: counters.prompt_tokens,
                output_tokens: counters.output_tokens,
                cache_query_tokens: counters.cache_query_tokens,
                cache_hit_tokens: counters.cache_hit_tokens,
                restored_hit_tokens: counters.restored_hit_tokens,
                evictions: Evictions {
                    unmarked: scheduler.evictions.unmarked,
                    expired: scheduler.evictions.expired,
                    over_share: scheduler.evictions.over_share,
                    marked: scheduler.evictions.marked,
                },
                preemptions: counters.preemptions,
                drafts: counters.drafts,
                draft_tokens: counters.draft_tokens,
                accepted_draft_tokens: counters.accepted_draft_tokens,
                encoded_media: counters.encoded_media,
                known_media: counters.known_media,
                restored_blocks: scheduler.store.loaded_blocks,
                stored_blocks: scheduler.store.saved_blocks,
                failed_block_transfers: scheduler.store.failed_reads + scheduler.store.failed_writes,
                pulled_blocks: scheduler.store.pulled_blocks,
                failed_pulls: scheduler.store.failed_pulls,
                served_blocks: scheduler.store.served_blocks,
                block_bytes: scheduler.store.block_bytes,
                state_blocks: scheduler.store.state_blocks,
                block_pull_ns: scheduler.store.block_pull_ns,
                failed_requests: failures.requests,
                executor_restarts,
            },
            step_tokens: StepTokens {
                bounds: IterationTokens::BOUNDS,
                counts: iteration_tokens.counts,
                sum: iteration_tokens.sum,
            },
        }
    }

    fn status(&self) -> Status {
        if self.0.is_lost() {
            Status::Lost
        } else if self.0.is_healthy() {
            Status::Ready
        } else {
            Status::Stalled
        }
    }

    fn cache_news(&self, cursor: &mut CacheCursor) -> Option<CacheNews> {
        Some(self.0.cache_news(cursor))
    }
}

fn engine_request(request: ReplicaRequest, id: RequestId) -> Request {
    let ReplicaRequest {
        tenant,
        cache_salt,
        session: _,
        cache_marks,
        priority,
        prompt,
        media,
        sampling,
        constraint,
        adapter,
        continuations,
        holder,
    } = request;
    let (n, outputs_so_far) = match continuations {
        Continuations::New { n } => (n, Vec::new()),
        Continuations::Resumed(resumed) => by_index(resumed),
    };
    let (constraint, adapter) =
        (constraint.map(|form| form.compiled), adapter.map(|adapter| adapter.adapter));
    Request {
        id,
        tenant,
        cache_salt,
        cache_marks,
        prompt,
        media,
        outputs_so_far,
        n,
        priority,
        sampling,
        constraint,
        adapter,
        holder: match holder {
            Some(PrefixHolder::Peer(holder)) => Some(holder),
            Some(PrefixHolder::Worker(_)) | None => None,
        },
    }
}

/// The index after that of the last continuation, and the outputs of the continuations by index.
fn by_index(resumed: Vec<ResumedContinuation>) -> (u32, Vec<Option<Arc<[TokenId]>>>) {
    let n = resumed.iter().map(|continuation| continuation.index + 1).max().unwrap_or(0);
    let mut outputs = vec![None; n as usize];
    for ResumedContinuation { index, output } in resumed {
        outputs[index as usize] = Some(output);
    }
    (n, outputs)
}

/// The event stream of a local engine.
#[derive(Debug)]
struct LocalGeneration(TokenStream);

impl Stream for LocalGeneration {
    type Item = ReplicaEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ReplicaEvent>> {
        self.0.poll_next(cx).map(|event| event.map(|event| event.map_error(ReplicaError::from)))
    }
}

impl Generation for LocalGeneration {
    fn abort_continuation(&mut self, index: u32) {
        self.0.abort_sequence(index);
    }

    fn trace(&self) -> Option<Arc<dyn TraceSource>> {
        Some(Arc::new(self.0.trace()))
    }
}

impl TraceSource for TraceSlot {
    fn get(&self) -> Option<&RequestTrace> {
        self.get().map(|trace| &**trace)
    }
}

impl From<SubmitError> for ReplicaError {
    fn from(error: SubmitError) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::Refused(refusal) => refused(refusal, message),
            SubmitError::Draining => Self { kind: ReplicaErrorKind::Draining, retryable: true, message },
            SubmitError::Unhealthy => Self { kind: ReplicaErrorKind::Unhealthy, retryable: true, message },
        }
    }
}

impl From<EngineFailure> for ReplicaError {
    fn from(failure: EngineFailure) -> Self {
        let message = failure.to_string();
        let (kind, retryable) = match failure {
            EngineFailure::Refused(refusal) => return refused(refusal, message),
            // The time limit is exceeded, wherever the request continued.
            EngineFailure::QueueTimedOut { .. } => (ReplicaErrorKind::QueuedTooLong, false),
            EngineFailure::Stopped => (ReplicaErrorKind::Stopped, true),
            EngineFailure::Unhealthy => (ReplicaErrorKind::Unhealthy, true),
            EngineFailure::StepTimedOut { .. }
            | EngineFailure::StepPanicked
            | EngineFailure::StepFailed(_)
            | EngineFailure::DuplicateId => (ReplicaErrorKind::Failed, true),
            // The same request fails on every replica.
            EngineFailure::SequenceFailed(SequenceError::NothingAllowed) => {
                (ReplicaErrorKind::NothingAllowed, false)
            }
            EngineFailure::SequenceFailed(SequenceError::Constraint(ConstraintError::LimitExceeded)) => {
                (ReplicaErrorKind::ConstraintTooComplex, false)
            }
            // Another replica would compute the same logits, and the reader would be as slow.
            EngineFailure::SequenceFailed(_) | EngineFailure::SlowReader { .. } => {
                (ReplicaErrorKind::Failed, false)
            }
        };
        Self { kind, retryable, message }
    }
}

/// Another replica may have room in its queue; the other refusals hold for every replica of a model.
fn refused(refusal: Refusal, message: String) -> ReplicaError {
    let retryable = matches!(refusal, Refusal::QueueFull { .. });
    ReplicaError { kind: ReplicaErrorKind::Refused(refusal), retryable, message }
}
