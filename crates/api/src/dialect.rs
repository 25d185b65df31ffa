//! The interface between an API and the gateway: an API reads requests into their neutral form and writes
//! neutral answers in its own form.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use throng_core::request::TokenId;
use throng_text::{PromptTrail, Tokenizer};

use crate::answer::{Answer, AnswerEvent, AnswerShape, Tally};
use crate::error::ApiError;
use crate::events::Events;
use crate::field::ReadOptions;
use crate::spec::GenerationSpec;

/// An API endpoint that generates text.
pub trait Dialect: Debug + Send + Sync {
    /// Reads and checks the body of a request.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    fn parse(&self, body: &[u8], options: &ReadOptions) -> Result<Request, ApiError>;

    /// The body of an error response.
    fn error_body(&self, error: &ApiError) -> Vec<u8>;
}

/// A checked request.
#[derive(Debug)]
pub struct Request {
    /// Parameters of the generation.
    pub spec: GenerationSpec,
    /// The client's options for the form of the answer.
    pub view: Box<dyn AnswerView>,
}

/// The client's options for the form of an answer.
pub trait AnswerView: Debug + Send {
    /// The parts of the answer that determine its size.
    fn shape(&self, spec: &GenerationSpec) -> AnswerShape;

    /// Creates the writer of the answer.
    fn writer(self: Box<Self>, facts: AnswerFacts) -> Box<dyn AnswerWriter>;
}

/// Facts for the answer that are known once its request is prepared.
#[derive(Debug, Clone)]
pub struct AnswerFacts {
    /// Name of the model in the answer.
    pub model: String,
    /// Start of the answer, in seconds since 1970.
    pub created_unix_s: u64,
    /// Token ids of each prompt.
    pub prompts: Vec<Arc<[TokenId]>>,
    /// Number of prompt tokens that represent images.
    pub n_image_tokens: u64,
    /// Texts of the prompts, if the answer repeats them.
    pub texts: Option<Vec<String>>,
    /// Sampling temperature.
    pub temperature: f32,
    /// Top-p of the sampling.
    pub top_p: f32,
    /// Tokenizer of the model, if it has one.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// The prompt along the tokens of earlier turns, if those of this turn are kept too.
    pub trail: Option<PromptTrail>,
}

impl AnswerFacts {
    /// Total tokens of all prompts.
    pub fn n_prompt_tokens(&self) -> u64 {
        self.prompts.iter().map(|prompt| prompt.len() as u64).sum()
    }

    /// The tally of the answer before its first event.
    pub fn tally(&self) -> Tally {
        Tally::new(self.n_prompt_tokens()).with_images(self.n_image_tokens)
    }
}

/// Writes an answer, as a stream of events or whole.
pub trait AnswerWriter: Debug + Send {
    /// Media type of a stream.
    fn stream_type(&self) -> &'static str {
        "text/event-stream; charset=utf-8"
    }

    /// Writes the next output that is due before the next event: the start of a stream, or the rest of a
    /// long event. Returns whether there was any.
    fn more(&mut self, out: &mut Events) -> bool;

    /// Writes an event; never [`AnswerEvent::Failed`].
    fn event(&mut self, event: AnswerEvent, out: &mut Events);

    /// Writes the end of a successful stream.
    fn end(&mut self, out: &mut Events);

    /// Writes the last event of a failed stream.
    fn error(&mut self, error: &ApiError, out: &mut Events);

    /// Writes a comment that clients ignore, as a keep-alive of an idle stream.
    fn ping(&mut self, comment: &str, out: &mut Events) {
        out.push_comment(comment);
    }

    /// Writes the whole answer as one body.
    ///
    /// # Errors
    /// I/O errors of `out`.
    fn whole(&self, answer: &Answer, out: &mut dyn io::Write) -> io::Result<()>;
}
