//! The answer to a request as neutral events, wherever they come from: the sessions of this gateway's own
//! models, and upstream engines.

use std::fmt::Debug;
use std::task::{Context, Poll, ready};

use throng_api::answer::{AnswerEvent, ChoiceEnd, Delta};
use throng_http::memory::Reservation;

use super::output::Output;
use super::reading::{AnswerReading, ChoiceReader};
use super::session::Session;
use crate::router::Route;
use throng_cache::CacheUse;

/// Where the events of an answer come from. Dropping it ends the generation.
pub(crate) trait AnswerSource: Debug + Send {
    /// The next event; `None` when everything has ended well.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<AnswerEvent>>;

    /// How many choices there are, over all prompts.
    fn n_choices(&self) -> usize;

    /// Keeps this reserved as long as it lives.
    fn keep(&mut self, memory: Reservation);

    /// Counts that its stream ended with an error.
    fn count_stream_error(&self);

    /// Whether nobody computes it at present: a replica is waited for.
    fn is_away(&self) -> bool {
        false
    }

    /// Where its tokens come from, if they may be shared.
    fn cache_use(&self) -> Option<CacheUse> {
        None
    }
}

/// The events of an answer as they come. Dropping it ends the generation.
#[derive(Debug)]
pub(crate) struct AnswerStream(Box<dyn AnswerSource>);

impl AnswerStream {
    /// The answer of a source.
    pub fn new(source: impl AnswerSource + 'static) -> Self {
        Self(Box::new(source))
    }

    /// The source itself.
    pub fn source(&mut self) -> &mut dyn AnswerSource {
        &mut *self.0
    }

    /// Counts that its stream ended with an error.
    pub fn count_stream_error(&self) {
        self.0.count_stream_error();
    }

    /// Whether nobody computes it at present.
    pub fn is_away(&self) -> bool {
        self.0.is_away()
    }

    /// The next event; `None` when everything has ended well. Can be dropped and called again without loss.
    pub async fn next(&mut self) -> Option<AnswerEvent> {
        std::future::poll_fn(|cx| self.0.poll_next(cx)).await
    }
}

/// The answer of a session: its outputs, their text read as reasoning, content and calls.
#[derive(Debug)]
pub(crate) struct SessionAnswer {
    session: Session,
    route: Route,
    /// One a choice, where text is read; else it is content as it is.
    readers: Vec<ChoiceReader>,
}

impl SessionAnswer {
    /// The answer of `session` over `route`, whose text is read as `reading` says.
    pub fn new(session: Session, route: Route, reading: Option<&AnswerReading>) -> Self {
        let readers = reading
            .map_or_else(Vec::new, |reading| (0..session.n_choices()).map(|_| reading.reader()).collect());
        Self { session, route, readers }
    }

    fn read(&mut self, output: Output) -> AnswerEvent {
        match output {
            Output::Prompt { prompt_idx, cached_tokens, logprobs } => {
                AnswerEvent::Prompt { prompt_idx, cached_tokens, logprobs }
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
