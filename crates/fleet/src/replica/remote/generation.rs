//! A request running on a worker, as the stream of its events. Dropping it resets the HTTP/2 stream, which
//! aborts the request on the worker. Does not submit requests.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_channel::mpsc;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, Stream};
use throng_core::timeline::request_trace::RequestTrace;
use throng_wire::{Command, Event};

use super::link::OwnSequences;
use super::lost;
use crate::body_lines::BodyLines;
use crate::replica::{Generation, PulledPrefix, ReplicaEvent, Timing, TraceSource, received_event};

/// A request running on a worker.
pub(super) struct RemoteGeneration {
    lines: BodyLines,
    commands: mpsc::UnboundedSender<Bytes>,
    /// Completes when the connection is lost; later data is ignored.
    lost: BoxFuture<'static, ()>,
    /// Number of running continuations.
    n_live: u32,
    aborted: Vec<u32>,
    pulls: Arc<Pulls>,
    _counted: OwnSequences,
}

impl RemoteGeneration {
    /// Creates the stream of an accepted request with `n` continuations.
    pub fn new(
        lines: BodyLines,
        commands: mpsc::UnboundedSender<Bytes>,
        lost: BoxFuture<'static, ()>,
        n: u32,
        counted: OwnSequences,
    ) -> Self {
        let pulls = Arc::default();
        Self { lines, commands, lost, n_live: n, aborted: Vec::new(), pulls, _counted: counted }
    }

    /// The same stream of a request whose beginning another worker has.
    pub fn with_holder(self, address: Option<String>) -> Self {
        Self { pulls: Arc::new(Pulls { from: address, prefix: OnceLock::new() }), ..self }
    }

    /// Notes the end of a continuation.
    fn note_end(&mut self, timing: &Timing) {
        self.n_live -= 1;
        if let Some(from) = self.pulls.from.clone().filter(|_| timing.pulled_tokens > 0) {
            let _ = self.pulls.prefix.set(PulledPrefix { n_tokens: timing.pulled_tokens, from });
        }
    }

    fn fail(&mut self, reason: &str) -> Poll<Option<ReplicaEvent>> {
        self.n_live = 0;
        Poll::Ready(Some(ReplicaEvent::Failed { error: lost(reason) }))
    }
}

impl Stream for RemoteGeneration {
    type Item = ReplicaEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ReplicaEvent>> {
        let this = &mut *self;
        loop {
            if this.n_live == 0 {
                return Poll::Ready(None);
            }
            if this.lost.poll_unpin(cx).is_ready() {
                return this.fail("the connection was lost");
            }
            let line = match this.lines.poll_line(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(Some(line))) => line,
                Poll::Ready(Ok(None)) => return this.fail("the worker broke off"),
                Poll::Ready(Err(error)) => return this.fail(&error.to_string()),
            };
            let Ok(event) = serde_json::from_slice::<Event>(&line) else {
                return this.fail("the worker sent what is no event");
            };
            match received_event(event) {
                None => {}
                Some(event) => {
                    match event {
                        ReplicaEvent::Finished { timing, .. } => this.note_end(&timing),
                        ReplicaEvent::Failed { .. } => this.n_live = 0,
                        _ => {}
                    }
                    return Poll::Ready(Some(event));
                }
            }
        }
    }
}

impl Generation for RemoteGeneration {
    fn abort_continuation(&mut self, index: u32) {
        if self.aborted.contains(&index) {
            return;
        }
        self.aborted.push(index);
        if let Ok(line) = throng_wire::line(&Command::Abort { index }) {
            // Sending fails if the request has ended, which needs no abort.
            let _ = self.commands.unbounded_send(line.into());
        }
    }

    fn trace(&self) -> Option<Arc<dyn TraceSource>> {
        Some(Arc::clone(&self.pulls) as _)
    }
}

/// The part of the prompt that the worker has from another one.
#[derive(Debug, Default)]
struct Pulls {
    /// The other worker.
    from: Option<String>,
    prefix: OnceLock<PulledPrefix>,
}

impl TraceSource for Pulls {
    fn get(&self) -> Option<&RequestTrace> {
        None
    }

    fn pulled(&self) -> Option<&PulledPrefix> {
        self.prefix.get()
    }
}

impl fmt::Debug for RemoteGeneration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteGeneration").field("n_live", &self.n_live).finish_non_exhaustive()
    }
}
