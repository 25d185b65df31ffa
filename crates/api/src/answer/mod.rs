//! The neutral form of an answer: what happened to a request, of which each API writes its view.

mod shape;
mod tally;
mod timings;
mod whole;

use throng_core::fleet::replica::{Timing, TokenReport};
use throng_core::request::FinishReason;

pub use shape::{AnswerShape, LogprobBytes};
pub use tally::{Moments, Tally, TokenCounts};
pub use timings::Timings;
pub use whole::{Answer, Call, Choice, PastTurn, PromptReport};

use crate::error::ApiError;

/// Event of a request. Choices are numbered through all prompts.
#[derive(Debug)]
pub enum AnswerEvent {
    /// A prompt is computed.
    Prompt {
        /// Number of the prompt.
        prompt_idx: usize,
        /// Its tokens that were found in the cache.
        cached_tokens: u32,
        /// Log-probabilities of its tokens but the first, when asked for.
        logprobs: Vec<TokenReport>,
    },
    /// A token of a choice, or a piece of text of an upstream engine, which may have several.
    Token {
        /// Number of the prompt × continuations of each prompt + number of the continuation.
        choice_idx: usize,
        /// The token; `None` where an upstream engine gives text alone.
        report: Option<TokenReport>,
        /// Whether it is part of the reasoning.
        is_reasoning: bool,
        /// What it adds to the answer, often nothing.
        deltas: Vec<Delta>,
    },
    /// A choice ended.
    Finished {
        /// Number of the choice.
        choice_idx: usize,
        /// What had been held back.
        deltas: Vec<Delta>,
        /// How it ended.
        end: ChoiceEnd,
    },
    /// Something of the tools that the server calls between turns of the model; only where the API has such.
    Served(ServedEvent),
    /// The tokens of the whole request, in place of those that its events were counted to have.
    Usage(TokenCounts),
    /// The request failed as a whole.
    Failed(ApiError),
}

/// An addition to a choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    /// Text of the answer.
    Content(String),
    /// Text of the reasoning before it.
    Reasoning(String),
    /// A call of a tool begins.
    CallBegin {
        /// Number of the call in its choice.
        call_idx: u32,
        /// What the call's result refers to.
        id: String,
        /// Name of the tool.
        name: String,
    },
    /// A piece of a call's arguments.
    CallArguments {
        /// Number of the call in its choice.
        call_idx: u32,
        /// The piece.
        fragment: String,
    },
}

/// Event of the tools that the server calls.
#[derive(Debug)]
pub enum ServedEvent {
    /// The model's turn ended with calls that the server runs. It goes on when these have ended.
    TurnEnded {
        /// What had been held back.
        deltas: Vec<Delta>,
        /// How the turn ended.
        end: ChoiceEnd,
    },
    /// A call that the server ran has ended.
    CallEnded {
        /// Number of the call in its turn.
        call_idx: u32,
        /// What came of it.
        result: Result<String, CallFailure>,
    },
    /// The next turn of the model began.
    TurnBegan {
        /// Tokens of its prompt.
        n_prompt_tokens: u64,
    },
}

/// The failure of a call that the server ran.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CallFailure {
    /// The tool's server refused it.
    #[error("{message}")]
    Protocol {
        /// JSON-RPC's code.
        code: i64,
        /// The reason.
        message: String,
    },
    /// The tool ran and failed.
    #[error("it failed: {content}")]
    Execution {
        /// Its output.
        content: serde_json::Value,
    },
    /// The call has no answer.
    #[error("{message}")]
    Unanswered {
        /// The status of HTTP that fits.
        status: u16,
        /// The reason.
        message: String,
    },
}

impl Delta {
    /// Its text of the answer, if it is some.
    pub fn content(&self) -> Option<&str> {
        match self {
            Self::Content(text) => Some(text),
            _ => None,
        }
    }
}

/// How a choice ended.
#[derive(Debug, Clone)]
pub struct ChoiceEnd {
    /// Why.
    pub reason: FinishReason,
    /// The stop string that ended it.
    pub stop: Option<String>,
    /// Whether it ended before a text that must not be sent.
    pub is_filtered: bool,
    /// Whether it has calls of tools.
    pub has_calls: bool,
    /// Times of its events.
    pub timing: Timing,
}
