//! The OpenAI wire: request and response types, strict JSON, validation, errors. Pure functions over bytes;
//! does not know sockets, engines and time.

pub mod error;
pub mod field;
mod ignored;
pub mod json;
pub mod openapi;
mod requests;
mod responses;
pub mod usage_report;

pub use requests::{
    adapters, chat, completion, conversation, generation_fields, generation_request, message, moderation,
    pooling, sampling, several_answers, tokenize, tools,
};
pub use responses::{
    chat_response, completion_response, logprobs, models, pooling_response, response, timings, usage,
};

pub use adapters::{LoadAdapterRequest, UnloadAdapterRequest};
pub use chat::ChatRequest;
pub use completion::{CompletionRequest, Prompt};
pub use conversation::Conversation;
pub(crate) use error::ErrorCode;
pub use error::{ApiError, ConstraintParam, ErrorType, SpentBudget};
pub use field::ReadOptions;
pub use generation_request::{GenerationRequest, StreamOptions, TruncationSide};
pub(crate) use ignored::IgnoredLog;
pub use ignored::IgnoredParameters;
pub use requests::OutputConstraint;
pub use sampling::{ModelFacts, ModelLimits, check_prompt, drop_invalid};
pub use tokenize::{DetokenizeRequest, TokenizeInput, TokenizeRequest};
