//! Answers of upstream engines as neutral events, for clients of any API. Does not know connections to
//! engines.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use throng_api::ApiError;
use throng_api::answer::{AnswerEvent, TokenCounts};
use throng_api::openai::upstream::AnswerReader;
use throng_fleet::upstream::{EventKind, UpstreamStream, Usage, data_of, rejection_reason};
use throng_http::memory::Reservation;

use super::active_request::ActiveRequest;
use super::begin::{Begun, UpstreamJob, begin, rejection_error};
use super::setting::Setting;
use super::whole::note_whole;
use crate::caller::Caller;
use crate::generation::{AnswerSource, AnswerStream};
use throng_metering::metrics::ModelMetrics;

/// Starts the answer to a request, which `reader` parses.
///
/// # Errors
/// Errors of [`begin`]; the reason of an engine that rejects the request.
pub(crate) async fn answer(
    setting: &Setting<'_>,
    job: &UpstreamJob<'_>,
    caller: &Arc<Caller>,
    mut reader: AnswerReader,
) -> Result<AnswerStream, ApiError> {
    let metrics = setting.metrics.of_upstream(job.model.id());
    let n_choices = reader.n_choices();
    let events = match begin(setting, job, caller).await? {
        Begun::Rejected(status, body) => return Err(rejection_error(status, &body)),
        Begun::Whole(mut active, bytes) => {
            let Ok(mut events) = reader.read(&bytes) else {
                active.fail_within("its answer is not in the form of OpenAI's API");
                return Err(ApiError::upstream_error());
            };
            note_whole(&mut active, &bytes);
            events.extend(reader.finish(counts(active.usage()), active.timing()));
            stream::iter(events).boxed()
        }
        Begun::Stream(active, rest) => {
            let streamed = StreamedAnswer { active, rest: Some(rest), reader, events: VecDeque::new() };
            stream::unfold(streamed, |mut streamed| async move { Some((streamed.next().await?, streamed)) })
                .boxed()
        }
    };
    Ok(AnswerStream::new(UpstreamSource { events, n_choices, metrics, memory: Vec::new() }))
}

fn counts(usage: Usage) -> TokenCounts {
    let Usage { prompt_tokens, image_tokens, completion_tokens, cached_tokens, reasoning_tokens } = usage;
    TokenCounts {
        prompt: prompt_tokens,
        images: image_tokens,
        cached: cached_tokens,
        output: completion_tokens,
        reasoning: reasoning_tokens,
    }
}

/// An answer as a stream of events.
#[derive(Debug)]
struct StreamedAnswer {
    active: ActiveRequest,
    /// `None` after the last event.
    rest: Option<UpstreamStream>,
    reader: AnswerReader,
    /// Events that were parsed and not returned yet.
    events: VecDeque<AnswerEvent>,
}

impl StreamedAnswer {
    async fn next(&mut self) -> Option<AnswerEvent> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            let rest = self.rest.as_mut()?;
            match rest.next().await {
                Ok(Some((event, kind))) => self.take(&event, &kind),
                // Some engines end without saying that they have.
                Ok(None) if self.active.all_ended() => self.end(),
                Ok(None) => self.fail("its stream broke off"),
                Err(fault) => self.fail(fault.told()),
            }
        }
    }

    fn take(&mut self, event: &[u8], kind: &EventKind) {
        // Counted before the client can see it.
        self.active.note_event(kind, event.len());
        let data = data_of(event).unwrap_or_default();
        match kind {
            EventKind::Nothing => {}
            EventKind::Part { .. } => match self.reader.read(data) {
                Ok(events) => self.events.extend(events),
                Err(fault) => self.fail(fault.0),
            },
            EventKind::Error => {
                self.fail("it ended its stream with an error");
                if let Some(reason) = rejection_reason(data).filter(|reason| reason.is_too_long) {
                    let status = http::StatusCode::BAD_REQUEST;
                    let error = ApiError::rejected_by_engine(status, reason.message, true);
                    self.events = VecDeque::from([AnswerEvent::Failed(error)]);
                }
            }
            EventKind::Done => self.end(),
        }
    }

    fn end(&mut self) {
        self.active.end();
        self.rest.take().into_iter().for_each(UpstreamStream::finish);
        self.events.extend(self.reader.finish(counts(self.active.usage()), self.active.timing()));
    }

    fn fail(&mut self, reason: &'static str) {
        self.active.fail_within(reason);
        self.rest = None;
        self.events.push_back(AnswerEvent::Failed(ApiError::upstream_error()));
    }
}

/// Events of an upstream engine's answer.
struct UpstreamSource {
    events: BoxStream<'static, AnswerEvent>,
    n_choices: usize,
    metrics: Arc<ModelMetrics>,
    memory: Vec<Reservation>,
}

impl AnswerSource for UpstreamSource {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<AnswerEvent>> {
        self.events.poll_next_unpin(cx)
    }

    fn n_choices(&self) -> usize {
        self.n_choices
    }

    fn keep(&mut self, memory: Reservation) {
        self.memory.push(memory);
    }

    fn count_stream_error(&self) {
        self.metrics.stream_error();
    }
}

impl fmt::Debug for UpstreamSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamSource").field("n_choices", &self.n_choices).finish_non_exhaustive()
    }
}
