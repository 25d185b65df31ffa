//! OpenAI's API: the types of its requests and responses.

pub mod openapi;
mod requests;
mod responses;

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
pub use generation_request::{GenerationRequest, StreamOptions, TruncationSide};
pub use requests::OutputConstraint;
pub use sampling::{ModelFacts, ModelLimits, check_prompt, drop_invalid};
pub use tokenize::{DetokenizeRequest, TokenizeInput, TokenizeRequest};
