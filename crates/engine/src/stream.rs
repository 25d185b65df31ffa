//! The way out: the events of one request, in order. Dropping the stream aborts the request. Refuses to know
//! text.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use throng_core::batch::{ChosenToken, TokenLogprob};
use throng_core::request::{FinishReason, RequestId, SequenceId};
use throng_core::timeline::Timeline;
use tokio::sync::mpsc;

use crate::engine::Message;
use crate::error::EngineFailure;
use crate::handle::{EngineState, Shared};

/// A token with what was asked to be reported beside it.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenReport {
    /// The token; its `logprob` and `rank` are 0 where no log-probabilities were asked for.
    pub chosen: TokenLogprob,
    /// The most likely tokens, most likely first; empty unless asked for.
    pub top: Vec<TokenLogprob>,
}

impl From<ChosenToken<'_>> for TokenReport {
    fn from(token: ChosenToken<'_>) -> Self {
        Self { chosen: token.chosen, top: token.top.to_vec() }
    }
}

/// Something happened to the request.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent {
    /// The prompt is computed. Comes once, before any token.
    Prompt {
        /// Prompt tokens that were found in the cache.
        cached_tokens: u32,
        /// The prompt tokens' log-probabilities but the first's, when asked for.
        logprobs: Vec<TokenReport>,
    },
    /// An output token.
    Token {
        /// Which continuation.
        index: u32,
        /// The token.
        report: TokenReport,
    },
    /// A continuation ended. The last event once all have.
    Finished {
        /// Which continuation.
        index: u32,
        /// Why.
        reason: FinishReason,
        /// When what happened.
        timeline: Timeline,
    },
    /// The request ended with all its continuations. The last event.
    Failed {
        /// Why.
        error: EngineFailure,
    },
}

/// What both ends of a stream share beside its events.
#[derive(Debug)]
pub struct StreamLink {
    /// Set before the engine closes the channel of a request that failed.
    pub failure: OnceLock<EngineFailure>,
    /// With this many events waiting the request is paused.
    pub high_mark: usize,
    is_paused: AtomicBool,
}

impl StreamLink {
    /// The link of a request that is not paused.
    pub fn new(high_mark: usize) -> Self {
        Self { failure: OnceLock::new(), high_mark, is_paused: AtomicBool::new(false) }
    }

    /// Asks the reader to tell when it has caught up, unless it has already: `n_waiting` counts the events that wait.
    /// Whether the request is to be paused.
    pub fn pause(&self, n_waiting: impl FnOnce() -> usize) -> bool {
        self.is_paused.store(true, Ordering::Relaxed);
        // Between this store and this count, as between the reader's taking of an event and its look at the flag: one
        // of the two sees what the other did, so that no request stays paused with nobody to wake it.
        fence(Ordering::SeqCst);
        if n_waiting() > self.low_mark() {
            return true;
        }
        self.is_paused.store(false, Ordering::Relaxed);
        false
    }

    /// Whether the reader, having taken an event and left `n_waiting`, has to tell that it has caught up.
    fn has_caught_up(&self, n_waiting: impl FnOnce() -> usize) -> bool {
        fence(Ordering::SeqCst);
        self.is_paused.load(Ordering::Relaxed)
            && n_waiting() <= self.low_mark()
            && self.is_paused.swap(false, Ordering::Relaxed)
    }

    fn low_mark(&self) -> usize {
        self.high_mark / 2
    }
}

/// The events of one request. Dropping it aborts what is not finished, within one step.
#[derive(Debug)]
pub struct TokenStream {
    request: RequestId,
    /// Continuations that have not ended.
    n_live: u32,
    events: mpsc::Receiver<StreamEvent>,
    link: Arc<StreamLink>,
    shared: Arc<Shared>,
    inbox: Sender<Message>,
}

impl TokenStream {
    pub(crate) fn new(
        request: RequestId,
        n: u32,
        events: mpsc::Receiver<StreamEvent>,
        link: Arc<StreamLink>,
        shared: Arc<Shared>,
        inbox: Sender<Message>,
    ) -> Self {
        Self { request, n_live: n, events, link, shared, inbox }
    }

    /// Which request it is.
    pub fn request_id(&self) -> RequestId {
        self.request
    }

    /// The next event; none after the last. Can be dropped and called again without losing an event.
    pub async fn next(&mut self) -> Option<StreamEvent> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// [`Self::next`] for those who poll.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<StreamEvent>> {
        self.events.poll_recv(context).map(|event| self.note(event))
    }

    /// [`Self::next`] for a thread of its own: waits.
    ///
    /// # Panics
    /// When called from an async task.
    pub fn blocking_next(&mut self) -> Option<StreamEvent> {
        let event = self.events.blocking_recv();
        self.note(event)
    }

    /// Ends one continuation: it needs no more tokens (a stop string was found). Its `Finished` still comes,
    /// after tokens that were on their way.
    pub fn abort_sequence(&self, index: u32) {
        let sequence = SequenceId { request: self.request, index };
        // An engine that has stopped needs no telling.
        let _ = self.inbox.send(Message::AbortSequence(sequence));
    }

    fn note(&mut self, event: Option<StreamEvent>) -> Option<StreamEvent> {
        if event.is_none() && self.n_live > 0 {
            self.n_live = 0;
            // Without a word the engine has stopped, or its thread is dead.
            let silent = match self.shared.state() {
                EngineState::Unhealthy => EngineFailure::Unhealthy,
                _ => EngineFailure::Stopped,
            };
            let error = self.link.failure.get().cloned().unwrap_or(silent);
            return Some(StreamEvent::Failed { error });
        }
        if event.is_some() && self.link.has_caught_up(|| self.events.len()) {
            let _ = self.inbox.send(Message::Resume(self.request));
        }
        if let Some(StreamEvent::Finished { .. }) = event {
            self.n_live = self.n_live.saturating_sub(1);
        }
        event
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        if self.n_live > 0 {
            let _ = self.inbox.send(Message::Abort(self.request));
        }
    }
}
