//! A generation behind the gate: reports its first token and its end to the gate. Does not know limits.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::{Stream, StreamExt};
use throng_core::request::FinishReason;
use throng_fleet::replica::{Generation, ReplicaEvent, TraceSource};

use super::Place;

/// A generation and its place behind the gate.
#[derive(Debug)]
pub(super) struct Admitted {
    generation: Box<dyn Generation>,
    place: Place,
    n_output: u64,
    /// Number of sequences that have not ended by themselves.
    n_live: u32,
}

impl Admitted {
    /// Creates it for a generation of `n` sequences that has just begun.
    pub fn new(generation: Box<dyn Generation>, place: Place, n: u32) -> Self {
        Self { generation, place, n_output: 0, n_live: n }
    }

    fn note(&mut self, event: &ReplicaEvent) {
        match event {
            ReplicaEvent::Token { .. } => {
                if self.n_output == 0 {
                    self.place.first_token();
                }
                self.n_output += 1;
            }
            ReplicaEvent::Finished { reason: FinishReason::Stop { .. } | FinishReason::Length, .. } => {
                self.n_live = self.n_live.saturating_sub(1);
                if self.n_live == 0 {
                    self.place.end(self.n_output, true);
                }
            }
            ReplicaEvent::Prompt { .. } | ReplicaEvent::Finished { .. } | ReplicaEvent::Failed { .. } => {}
        }
    }
}

impl Stream for Admitted {
    type Item = ReplicaEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ReplicaEvent>> {
        let event = ready!(self.generation.poll_next_unpin(cx));
        if let Some(event) = &event {
            self.note(event);
        }
        Poll::Ready(event)
    }
}

impl Generation for Admitted {
    fn abort_continuation(&mut self, index: u32) {
        self.generation.abort_continuation(index);
    }

    fn stop_continuation(&mut self, index: u32) {
        self.generation.stop_continuation(index);
    }

    fn trace(&self) -> Option<Arc<dyn TraceSource>> {
        self.generation.trace()
    }
}
