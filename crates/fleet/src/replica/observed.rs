//! Records the requests of a gateway: their arrivals, and their outputs when they end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use throng_core::engine::recording::{LoadObserver, Observed};
use throng_core::request::{FinishReason, Request, RequestId, SequenceId, TokenId};
use throng_core::time::{Nanos, Timestamp};
use tokio::time::Instant;

use super::{Continuations, ReplicaEvent, ReplicaRequest};

/// An observer with the clock and the numbers of recorded requests.
#[derive(Debug, Clone)]
pub struct FleetRecording(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    observer: Arc<dyn LoadObserver>,
    origin: Instant,
    n_requests: AtomicU64,
}

impl FleetRecording {
    /// Notifies this observer from now on.
    pub fn new(observer: Arc<dyn LoadObserver>) -> Self {
        Self(Arc::new(Inner { observer, origin: Instant::now(), n_requests: AtomicU64::new(0) }))
    }

    fn now(&self) -> Timestamp {
        Timestamp::default() + Nanos::from(self.0.origin.elapsed())
    }

    /// Records the arrival of a request.
    pub(super) fn begin(&self, request: &ReplicaRequest) -> Option<ObservedRequest> {
        let Continuations::New { n } = request.continuations else { return None };
        let id = RequestId(self.0.n_requests.fetch_add(1, Ordering::Relaxed));
        let plain = Request {
            id,
            tenant: request.tenant.clone(),
            cache_salt: request.cache_salt.clone(),
            cache_marks: request.cache_marks.clone(),
            prompt: Arc::clone(&request.prompt),
            media: request.media.clone(),
            outputs_so_far: Vec::new(),
            n,
            priority: request.priority,
            sampling: Arc::clone(&request.sampling),
            constraint: request.constraint.as_ref().map(|form| form.compiled.clone()),
            holder: None,
            adapter: request.adapter.as_ref().map(|adapter| adapter.adapter),
        };
        let now = self.now();
        self.0.observer.observed(Observed::submitted(plain, now));
        Some(ObservedRequest {
            recording: self.clone(),
            id,
            outputs: vec![Vec::new(); n as usize],
            n_live: n,
        })
    }
}

/// A request of a recording. If it is dropped before its end, it counts as cancelled.
#[derive(Debug)]
pub(super) struct ObservedRequest {
    recording: FleetRecording,
    id: RequestId,
    outputs: Vec<Vec<TokenId>>,
    n_live: u32,
}

impl ObservedRequest {
    /// Notes an event that is passed on.
    pub fn note(&mut self, event: &ReplicaEvent) {
        match event {
            ReplicaEvent::Token { index, report } => {
                if let Some(output) = self.outputs.get_mut(*index as usize) {
                    output.push(report.chosen.token);
                }
            }
            ReplicaEvent::Finished { index, reason, .. } => {
                let Some(output) = self.outputs.get_mut(*index as usize) else { return };
                let (id, output) = (SequenceId { request: self.id, index: *index }, std::mem::take(output));
                self.n_live = self.n_live.saturating_sub(1);
                let at = self.recording.now();
                self.recording.0.observer.observed(Observed::ended(
                    id,
                    output,
                    *reason,
                    self.n_live == 0,
                    at,
                ));
            }
            ReplicaEvent::Failed { .. } => self.end(FinishReason::Error),
            ReplicaEvent::Prompt { .. } => {}
        }
    }

    fn end(&mut self, reason: FinishReason) {
        let n = self.outputs.len() as u32;
        for index in 0..n {
            let output = std::mem::take(&mut self.outputs[index as usize]);
            let id = SequenceId { request: self.id, index };
            let at = self.recording.now();
            self.recording.0.observer.observed(Observed::ended(id, output, reason, index + 1 == n, at));
        }
        self.n_live = 0;
    }
}

impl Drop for ObservedRequest {
    fn drop(&mut self) {
        if self.n_live > 0 {
            self.end(FinishReason::Abort);
        }
    }
}
