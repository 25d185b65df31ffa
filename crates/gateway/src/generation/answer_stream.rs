//! The answer to a request as neutral events: a session's outputs, their text read as reasoning, content and
//! calls.

use throng_api::answer::{AnswerEvent, ChoiceEnd, Delta};

use super::output::Output;
use super::reading::{AnswerReading, ChoiceReader};
use super::session::Session;

/// The events of an answer as they come. Dropping it ends the generation.
#[derive(Debug)]
pub(crate) struct AnswerStream {
    session: Session,
    /// One a choice, where text is read; else it is content as it is.
    readers: Vec<ChoiceReader>,
}

impl AnswerStream {
    /// The answer of `session`, whose text is read as `reading` says.
    pub fn new(session: Session, reading: Option<&AnswerReading>) -> Self {
        let readers = reading
            .map_or_else(Vec::new, |reading| (0..session.n_choices()).map(|_| reading.reader()).collect());
        Self { session, readers }
    }

    /// The generation itself.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// The next event; `None` when everything has ended well.
    pub async fn next(&mut self) -> Option<AnswerEvent> {
        let output = self.session.next().await?;
        Some(self.read(output))
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
                AnswerEvent::Token { choice_idx, report, is_reasoning, deltas }
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
