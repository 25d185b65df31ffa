//! The OpenAI wire: request and response types, strict JSON, validation, errors. Pure functions over bytes;
//! refuses to know sockets, engines and time.

pub mod chat;
pub mod chat_response;
pub mod completion;
pub mod completion_response;
mod content;
pub mod conversation;
pub mod error;
pub mod field;
pub mod generation_fields;
pub mod generation_request;
mod generation_values;
pub mod json;
pub mod logprobs;
pub mod message;
pub mod models;
pub mod openapi;
pub mod response;
pub mod sampling;
pub mod tokenize;
mod tool_calls;
pub mod tools;
pub mod usage;

pub use chat::ChatRequest;
pub use completion::{CompletionRequest, Prompt};
pub use conversation::Conversation;
pub use error::{ApiError, ErrorType};
pub use field::{IgnoredParameters, ReadOptions};
pub use generation_request::{GenerationRequest, StreamOptions, TruncationSide};
pub use sampling::{GenerationDefaults, ModelFacts, ModelLimits, check_prompt};
pub use tokenize::{DetokenizeRequest, TokenizeInput, TokenizeRequest};
