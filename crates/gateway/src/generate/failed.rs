//! Answers that are an error: nothing is generated, and their stream has the reason in its own events.

use std::task::{Context, Poll};

use throng_api::answer::AnswerEvent;
use throng_api::{ApiError, Request};
use throng_http::memory::{Part, Reservation};

use super::{StartedRequest, facts_without_tokens};
use crate::app::App;
use crate::generation::{AnswerBound, AnswerSource, AnswerStream};

/// An answer that is an error, until it was read.
#[derive(Debug)]
struct FailedAnswer {
    error: Option<ApiError>,
    memory: Vec<Reservation>,
}

impl AnswerSource for FailedAnswer {
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Option<AnswerEvent>> {
        Poll::Ready(self.error.take().map(AnswerEvent::Failed))
    }

    fn n_choices(&self) -> usize {
        1
    }

    fn keep(&mut self, memory: Reservation) {
        self.memory.push(memory);
    }

    fn count_stream_error(&self) {}
}

impl StartedRequest {
    /// Starts the answer to a request that fails with `error`.
    pub fn failed(app: &App, (request, memory): (Request, Reservation), error: ApiError) -> Self {
        let Request { spec, view } = request;
        let options = spec.options;
        let sampling = (options.temperature.unwrap_or(1.0), options.top_p.unwrap_or(1.0));
        let facts = facts_without_tokens(options.model().to_owned(), 1, sampling);
        Self {
            stream: AnswerStream::new(FailedAnswer { error: Some(error), memory: vec![memory] }),
            writer: view.writer(facts),
            is_streaming: options.is_streaming(),
            bound: AnswerBound::of_text(app.config.api.max_answer_bytes, options.names.max_tokens),
            ignored: options.ignored,
            n_prompt_tokens: vec![0],
            n_image_tokens: 0,
            n_shown: 1,
            memory: app.work.memory.reservation(Part::Answers),
        }
    }
}
