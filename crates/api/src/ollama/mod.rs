//! Ollama's API: chat and generate as JSON lines, embeddings, models. Names are those of its Python
//! library, version 0.6.

mod embed;
mod messages;
mod pull;
mod request;
mod response;
mod stay;
mod writer;

use serde::Serialize;

use crate::dialect::{Dialect, Request};
use crate::error::ApiError;
use crate::field::ReadOptions;

pub use embed::{
    EMBED_COMMON_FIELDS, EMBED_FIELDS, EMBEDDINGS_FIELDS, EmbedAnswer, EmbedRequest, EmbeddingAnswer,
};
pub use pull::{PULL_FIELDS, PullLine, PullRequest};
pub use request::{CHAT_FIELDS, COMMON_FIELDS, GENERATE_FIELDS};
pub use response::{LoadAnswer, ModelDescription, ModelEntry, ModelList};
pub use stay::{Stay, StayRequest};

/// `POST /api/chat`.
#[derive(Debug, Clone, Copy)]
pub struct Chat;

impl Dialect for Chat {
    fn parse(&self, body: &[u8], options: &ReadOptions) -> Result<Request, ApiError> {
        let spec = request::parse_chat(body, options)?;
        Ok(Request { spec, view: Box::new(writer::View { is_chat: true }) })
    }

    fn error_body(&self, error: &ApiError) -> Vec<u8> {
        error_body(error)
    }
}

/// `POST /api/generate`.
#[derive(Debug, Clone, Copy)]
pub struct Generate;

impl Dialect for Generate {
    fn parse(&self, body: &[u8], options: &ReadOptions) -> Result<Request, ApiError> {
        let spec = request::parse_generate(body, options)?;
        Ok(Request { spec, view: Box::new(writer::View { is_chat: false }) })
    }

    fn error_body(&self, error: &ApiError) -> Vec<u8> {
        error_body(error)
    }
}

/// An error, as a body or as the last line of a stream. The code is an addition to Ollama's form.
#[derive(Debug, Serialize)]
struct ErrorObject<'a> {
    error: &'a str,
    code: &'static str,
}

impl<'a> ErrorObject<'a> {
    fn new(error: &'a ApiError) -> Self {
        Self { error: error.message(), code: error.code() }
    }
}

fn error_body(error: &ApiError) -> Vec<u8> {
    serde_json::to_vec(&ErrorObject::new(error)).expect("strings always serialise")
}
