//! The source of answers of a chat in the terminal: a model in this process, or a server. Does not know the
//! terminal.

use std::sync::Arc;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use throng_core::request::FinishReason;
use throng_core::scheduling::admission::Refusal;
use throng_engine::SubmitError;

use super::answer::{Answer, ContextFull};
use super::remote::{Piece, Server};
use crate::args::ChatArgs;
use crate::config::{EngineSection, ModelSection};
use crate::process::output;
use crate::running::{self, RunningModel};

/// A source of answers.
pub enum Answering {
    /// A model in this process.
    Model(Box<RunningModel>),
    /// A server that has the model.
    Server(Arc<Server>),
}

impl Answering {
    /// Loads the model, or asks the server which models it has.
    ///
    /// # Errors
    /// When the model cannot be loaded or the server cannot be reached.
    pub fn start(arguments: &ChatArgs) -> Result<Self> {
        if let Some(url) = &arguments.url {
            let server = Server::find(url, arguments.api_key.as_deref(), arguments.model.model())?;
            return Ok(Self::Server(Arc::new(server)));
        }
        Self::load(arguments)
    }

    /// Answers with the models of a server.
    pub fn by_server(server: Server) -> Self {
        Self::Server(Arc::new(server))
    }

    /// Loads the model.
    ///
    /// # Errors
    /// When it cannot be loaded.
    pub fn load(arguments: &ChatArgs) -> Result<Self> {
        let section = ModelSection::of(&arguments.model);
        let running = running::start(&section, &EngineSection::of(&arguments.model))?;
        if let Some(line) = running.describe_quantizing() {
            output::note(line);
        }
        Ok(Self::Model(Box::new(running)))
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        match self {
            Self::Model(running) => &running.names[0],
            Self::Server(server) => server.model(),
        }
    }

    /// A notice for the user about the model.
    pub fn notice(&self) -> Option<&'static str> {
        match self {
            Self::Model(running) => running.notice,
            Self::Server(_) => None,
        }
    }

    /// Answers a conversation and passes the text to `on_text` piece by piece; `on_text` returns false to
    /// stop.
    ///
    /// # Errors
    /// [`ContextFull`], or why there is no answer.
    pub async fn answer(
        &self,
        messages: &[Value],
        arguments: &ChatArgs,
        on_text: impl FnMut(&str) -> bool,
    ) -> Result<Answer> {
        let running = match self {
            Self::Server(server) => return of_server(server, messages, arguments, on_text).await,
            Self::Model(running) => running,
        };
        let prompt = running.chat_prompt(messages)?;
        let answered = running.generate(prompt, &arguments.sampling, on_text).await.map_err(|error| {
            match error.downcast_ref() {
                Some(SubmitError::Refused(Refusal::TooLong { .. } | Refusal::NeverFits { .. })) => {
                    ContextFull.into()
                }
                _ => error,
            }
        })?;
        let n_held = answered.n_prompt + answered.n_output;
        let is_full = n_held >= running.engine.capacity().max_sequence_tokens as usize;
        Ok(Answer {
            n_tokens: answered.n_output,
            context_is_full: is_full && answered.reason == FinishReason::Length,
        })
    }
}

/// Maximum number of pieces received from a server and not yet printed.
const MAX_PIECES: usize = 64;

/// Asks a server on a thread of its own, so that the caller can stop waiting. The request then ends with
/// the next piece.
async fn of_server(
    server: &Arc<Server>,
    messages: &[Value],
    arguments: &ChatArgs,
    mut on_text: impl FnMut(&str) -> bool,
) -> Result<Answer> {
    let (tell, mut pieces) = tokio::sync::mpsc::channel(MAX_PIECES);
    let (server, messages, sampling) = (server.clone(), messages.to_vec(), arguments.sampling.clone());
    let asking = tokio::task::spawn_blocking(move || {
        server.answer(&messages, &sampling, |piece| tell.blocking_send(piece).is_ok())
    });
    while let Some(piece) = pieces.recv().await {
        match piece {
            Piece::Text(text) if !on_text(&text) => break,
            Piece::Text(_) => {}
            Piece::Reasoning(text) => output::aside(&text),
        }
    }
    drop(pieces);
    asking.await.context("asking the server panicked")?
}

/// A message of the user with images before its text.
pub fn showing(images: Vec<Value>, text: &str) -> Value {
    let parts: Vec<Value> = images.into_iter().chain([json!({"type": "text", "text": text})]).collect();
    json!({"role": "user", "content": parts})
}

/// A message of the conversation.
pub fn message(role: &str, text: &str) -> Value {
    json!({"role": role, "content": text})
}
