//! What one API is to the gateway: it reads requests into their neutral form and writes views of neutral
//! answers.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use throng_core::request::TokenId;
use throng_text::Tokenizer;

use crate::answer::{Answer, AnswerEvent, AnswerShape};
use crate::error::ApiError;
use crate::events::Events;
use crate::field::ReadOptions;
use crate::spec::GenerationSpec;

/// An endpoint of an API that generates text.
pub trait Dialect: Debug + Send + Sync {
    /// Reads and checks the body of a request.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    fn parse(&self, body: &[u8], options: &ReadOptions) -> Result<Request, ApiError>;

    /// The body of an error answer.
    fn error_body(&self, error: &ApiError) -> Vec<u8>;
}

/// A checked request.
#[derive(Debug)]
pub struct Request {
    /// What is to be generated.
    pub spec: GenerationSpec,
    /// How its client wants to see the answer.
    pub view: Box<dyn AnswerView>,
}

/// How the client of a request wants to see the answer.
pub trait AnswerView: Debug + Send {
    /// What the answer shows, as far as its size depends on it.
    fn shape(&self, spec: &GenerationSpec) -> AnswerShape;

    /// Creates the writer of the answer.
    fn writer(self: Box<Self>, facts: AnswerFacts) -> Box<dyn AnswerWriter>;
}

/// What an answer may repeat of its request once that is prepared.
#[derive(Debug, Clone)]
pub struct AnswerFacts {
    /// The name under which the model answers.
    pub model: String,
    /// Seconds since 1970 when the answer began.
    pub created_unix_s: u64,
    /// The tokens of each prompt.
    pub prompts: Vec<Arc<[TokenId]>>,
    /// The texts of the prompts, where the answer repeats them.
    pub texts: Option<Vec<String>>,
    /// The temperature that it is sampled with.
    pub temperature: f32,
    /// The nucleus that it is sampled with.
    pub top_p: f32,
    /// The model's tokenizer, if it has one.
    pub tokenizer: Option<Arc<Tokenizer>>,
}

impl AnswerFacts {
    /// Tokens of all prompts.
    pub fn n_prompt_tokens(&self) -> u64 {
        self.prompts.iter().map(|prompt| prompt.len() as u64).sum()
    }
}

/// Writes an answer, as a stream of events or whole.
pub trait AnswerWriter: Debug + Send {
    /// The media type of a stream.
    fn stream_type(&self) -> &'static str {
        "text/event-stream; charset=utf-8"
    }

    /// Writes the next piece of what is due before the next event: the beginning of a stream, or the rest of
    /// a long event. Returns whether there was any.
    fn more(&mut self, out: &mut Events) -> bool;

    /// Writes an event; never [`AnswerEvent::Failed`].
    fn event(&mut self, event: AnswerEvent, out: &mut Events);

    /// Writes the end of a stream that ended well.
    fn end(&mut self, out: &mut Events);

    /// Writes the last event of a stream that did not.
    fn error(&mut self, error: &ApiError, out: &mut Events);

    /// Writes something that clients ignore, so that a silent stream is known to be alive.
    fn ping(&mut self, comment: &str, out: &mut Events) {
        out.push_comment(comment);
    }

    /// Writes the whole answer as one body.
    ///
    /// # Errors
    /// Those of `out`.
    fn whole(&self, answer: &Answer, out: &mut dyn io::Write) -> io::Result<()>;
}
