//! The neutral form of an answer: events of a request, which each API writes in its own form.

mod call_failure;
mod shape;
mod tally;
mod timings;
mod whole;

use throng_core::fleet::replica::{Timing, TokenReport};
use throng_core::request::FinishReason;

pub use call_failure::CallFailure;
pub use shape::{AnswerShape, LogprobBytes};
pub use tally::{KeptTokens, Moments, Tally, TokenCounts};
pub use timings::Timings;
pub use whole::{Answer, Call, Choice, PastTurn, PromptReport};

use crate::error::ApiError;

/// Event of a request. Choices are numbered across all prompts.
#[derive(Debug)]
pub enum AnswerEvent {
    /// A prompt is computed.
    Prompt {
        /// Index of the prompt.
        prompt_idx: usize,
        /// Number of its tokens that were found in the prefix cache.
        cached_tokens: u32,
        /// Tokens that were computed and are kept at the client's wish.
        kept: KeptTokens,
        /// Log-probabilities of all its tokens except the first, if requested.
        logprobs: Vec<TokenReport>,
    },
    /// A token of a choice; from an upstream engine, a piece of text with any number of tokens.
    Token {
        /// Index of the choice: prompt index × choices of a prompt + index within the prompt.
        choice_idx: usize,
        /// The token; `None` if an upstream engine sends only text.
        report: Option<TokenReport>,
        /// Whether the token is part of the reasoning.
        is_reasoning: bool,
        /// Additions to the answer, often none.
        deltas: Vec<Delta>,
    },
    /// A choice has ended.
    Finished {
        /// Index of the choice.
        choice_idx: usize,
        /// Text held back until now.
        deltas: Vec<Delta>,
        /// End of the choice.
        end: ChoiceEnd,
    },
    /// Progress of the tools that the server calls between turns of the model; only in APIs with such tools.
    Served(ServedEvent),
    /// Token counts of the whole request; they replace the counts taken from the events.
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
        /// Index of the call in its choice.
        call_idx: u32,
        /// Id that the call's result refers to.
        id: String,
        /// Name of the tool.
        name: String,
    },
    /// A fragment of a call's arguments.
    CallArguments {
        /// Index of the call in its choice.
        call_idx: u32,
        /// Next part of the arguments.
        fragment: String,
    },
}

/// Event of the tools that the server calls.
#[derive(Debug)]
pub enum ServedEvent {
    /// The model's turn ended with calls that the server runs. The answer continues when these have ended.
    TurnEnded {
        /// Text and calls that were held back until the end.
        deltas: Vec<Delta>,
        /// End of the model's turn.
        end: ChoiceEnd,
    },
    /// A call that the server ran has ended.
    CallEnded {
        /// Number of the call in its turn.
        call_idx: u32,
        /// Result of the call.
        result: Result<String, CallFailure>,
    },
    /// The next turn of the model began.
    TurnBegan {
        /// Number of prompt tokens of the turn.
        n_prompt_tokens: u64,
        /// Number of tokens of its prompt that represent images.
        n_image_tokens: u64,
    },
}

impl Delta {
    /// The added answer text; `None` for other additions.
    pub fn content(&self) -> Option<&str> {
        match self {
            Self::Content(text) => Some(text),
            _ => None,
        }
    }
}

/// End of a choice.
#[derive(Debug, Clone)]
pub struct ChoiceEnd {
    /// Finish reason.
    pub reason: FinishReason,
    /// Stop string that ended the choice.
    pub stop: Option<String>,
    /// Whether moderation ended the choice before a text that must not be sent.
    pub is_filtered: bool,
    /// Whether the choice has tool calls.
    pub has_calls: bool,
    /// Times of the choice's events.
    pub timing: Timing,
}
