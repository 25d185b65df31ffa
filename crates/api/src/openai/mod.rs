//! OpenAI's API: the types of its requests and responses.

mod answers;
mod requests;
mod responses;
pub mod upstream;

pub use answers::{ChatCompletions, Completions};
pub use requests::{
    adapters, batch, chat, completion, conversation, drop_invalid, generation_fields, message, moderation,
    pooling, tokenize, tools,
};
pub use responses::{
    chat_response, completion_response, files, logprobs, models, pooling_response, response, usage,
};

pub use adapters::{LoadAdapterRequest, UnloadAdapterRequest};
pub use tokenize::{DetokenizeRequest, TokenizeInput, TokenizeRequest};
