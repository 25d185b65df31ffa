//! Answers as neutral events, from sessions of this gateway's own models or from upstream engines.

use std::fmt::Debug;
use std::task::{Context, Poll, ready};

use throng_api::answer::{AnswerEvent, ChoiceEnd, Delta};
use throng_http::memory::Reservation;

use super::output::Output;
use super::reading::{AnswerReading, ChoiceReader};
use super::session::Session;
use crate::router::Route;
use throng_cache::CacheUse;

/// Source of the events of an answer. Dropping it ends the generation.
pub(crate) trait AnswerSource: Debug + Send {
    /// Polls for the next event; `None` after the last of a complete answer.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<AnswerEvent>>;

    /// Number of choices, over all prompts.
    fn n_choices(&self) -> usize;

    /// Holds this reservation as long as the source exists.
    fn keep(&mut self, memory: Reservation);

    /// Counts that the client's stream ended with an error.
    fn count_stream_error(&self);

    /// Whether the generation waits for a replica.
    fn is_away(&self) -> bool {
        false
    }

    /// Origin of the tokens, if they may be shared.
    fn cache_use(&self) -> Option<CacheUse> {
        None
    }
}

/// Events of an answer. Dropping it ends the generation.
#[derive(Debug)]
pub(crate) struct AnswerStream(Box<dyn AnswerSource>);

impl AnswerStream {
    /// Creates the stream of a source.
    pub fn new(source: impl AnswerSource + 'static) -> Self {
        Self(Box::new(source))
    }

    /// Source of the stream's events.
    pub fn source(&mut self) -> &mut dyn AnswerSource {
        &mut *self.0
    }

    /// Counts that the client's stream ended with an error.
    pub fn count_stream_error(&self) {
        self.0.count_stream_error();
    }

    /// Whether the generation waits for a replica.
    pub fn is_away(&self) -> bool {
        self.0.is_away()
    }

    /// The next event; `None` after the last of a complete answer. Cancel-safe.
    pub async fn next(&mut self) -> Option<AnswerEvent> {
        std::future::poll_fn(|cx| self.0.poll_next(cx)).await
    }
}

/// Answer of a session, with its text parsed into reasoning, content and calls.
#[derive(Debug)]
pub(crate) struct SessionAnswer {
    session: Session,
    route: Route,
    /// Parsers, one for each choice; empty if text is content as it is.
    readers: Vec<ChoiceReader>,
}

impl SessionAnswer {
    /// Creates the answer of `session` over `route`, whose text is parsed with `reading`.
    pub fn new(session: Session, route: Route, reading: Option<&AnswerReading>) -> Self {
        let readers = reading
            .map_or_else(Vec::new, |reading| (0..session.n_choices()).map(|_| reading.reader()).collect());
        Self { session, route, readers }
    }

    fn read(&mut self, output: Output) -> AnswerEvent {
        match output {
            Output::Prompt { prompt_idx, cached_tokens, kept, logprobs } => {
                AnswerEvent::Prompt { prompt_idx, cached_tokens, kept, logprobs }
            }
            Output::Token { choice_idx, text, report } => {
                let (deltas, is_reasoning) = match self.readers.get_mut(choice_idx) {
                    Some(reader) => {
                        let read = reader.token(&text, report.chosen.token);
                        (read.deltas, read.is_reasoning)
                    }
                    None => (vec![Delta::Content(text)], false),
                };
                AnswerEvent::Token { choice_idx, report: Some(report), is_reasoning, deltas }
            }
            Output::Finished { choice_idx, text, reason, stop, is_filtered, timing } => {
                let (deltas, has_calls) = match self.readers.get_mut(choice_idx) {
                    Some(reader) => (reader.finish(&text), reader.has_calls()),
                    None => (vec![Delta::Content(text)], false),
                };
                let end = ChoiceEnd { reason, stop, is_filtered, has_calls, timing };
                AnswerEvent::Finished { choice_idx, deltas, end }
            }
            Output::Failed(error) => AnswerEvent::Failed(self.session.client_error(&error)),
        }
    }
}

impl AnswerSource for SessionAnswer {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<AnswerEvent>> {
        let output = ready!(self.session.poll_output(cx));
        Poll::Ready(output.map(|output| self.read(output)))
    }

    fn n_choices(&self) -> usize {
        self.session.n_choices()
    }

    fn keep(&mut self, memory: Reservation) {
        self.session.keep(memory);
    }

    fn count_stream_error(&self) {
        self.route.model.metrics.stream_error();
    }

    fn is_away(&self) -> bool {
        self.route.is_away()
    }

    fn cache_use(&self) -> Option<CacheUse> {
        self.session.cache_use()
    }
}
