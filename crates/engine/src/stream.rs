//! The events of one request, in order. Dropping the stream aborts the request. Does not know text.

use std::sync::Arc;
use std::task::{Context, Poll};

use throng_core::engine::{EngineFailure, EngineState, Input, StreamEvent};
use throng_core::request::{RequestId, SequenceId};
use tokio::sync::mpsc;

use crate::message::{Inbox, Message};
use crate::outbox::{StreamLink, TraceSlot};
use crate::shared::Shared;

/// The events of one request. Dropping it aborts unfinished continuations within one step.
#[derive(Debug)]
pub struct TokenStream {
    request: RequestId,
    /// Number of continuations that have not ended.
    n_live: u32,
    events: mpsc::UnboundedReceiver<StreamEvent>,
    link: Arc<StreamLink>,
    shared: Arc<Shared>,
    inbox: Inbox,
}

impl TokenStream {
    pub(crate) fn new(
        request: RequestId,
        n: u32,
        events: mpsc::UnboundedReceiver<StreamEvent>,
        link: Arc<StreamLink>,
        shared: Arc<Shared>,
        inbox: Inbox,
    ) -> Self {
        Self { request, n_live: n, events, link, shared, inbox }
    }

    /// Id of the request.
    pub fn request_id(&self) -> RequestId {
        self.request
    }

    /// Slot of the request's trace, filled once it has ended.
    pub fn trace(&self) -> TraceSlot {
        TraceSlot::new(&self.link)
    }

    /// The next event; `None` after the last. Cancel-safe.
    pub async fn next(&mut self) -> Option<StreamEvent> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// Polling form of [`Self::next`].
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<StreamEvent>> {
        self.events.poll_recv(context).map(|event| self.note(event))
    }

    /// Blocking form of [`Self::next`].
    ///
    /// # Panics
    /// When called from an async task.
    pub fn blocking_next(&mut self) -> Option<StreamEvent> {
        let event = self.events.blocking_recv();
        self.note(event)
    }

    /// Ends one continuation, which needs no more tokens (a stop string was found). Its `Finished` still
    /// arrives, after the tokens already sent.
    pub fn abort_sequence(&self, index: u32) {
        self.tell(Input::AbortSequence(SequenceId { request: self.request, index }));
    }

    fn note(&mut self, event: Option<StreamEvent>) -> Option<StreamEvent> {
        let Some(event) = event else {
            return self.failure_at_end();
        };
        if self.link.taken(event.weight()) {
            self.tell(Input::ReaderCaughtUp(self.request));
        }
        if let StreamEvent::Finished { .. } = event {
            self.n_live = self.n_live.saturating_sub(1);
        }
        Some(event)
    }

    /// The failure that ended the stream, returned once, if not all continuations have finished.
    fn failure_at_end(&mut self) -> Option<StreamEvent> {
        if std::mem::take(&mut self.n_live) == 0 {
            return None;
        }
        // Where none was set the engine has stopped, or its thread is dead.
        let unsaid = || match self.shared.state() {
            EngineState::Unhealthy => EngineFailure::Unhealthy,
            EngineState::Running | EngineState::Draining | EngineState::Stopped => EngineFailure::Stopped,
        };
        let error = self.link.failure.get().cloned().unwrap_or_else(unsaid);
        Some(StreamEvent::Failed { error })
    }

    fn tell(&self, input: Input) {
        // An engine that has stopped need not be told.
        let _ = self.inbox.send(Message::Input(input));
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        if self.n_live > 0 {
            self.tell(Input::Abort(self.request));
        }
    }
}
