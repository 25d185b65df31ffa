//! What clients send: the parameters of each endpoint, read strictly and checked. Does not know how requests
//! are served.

pub mod adapters;
pub mod chat;
pub mod completion;
pub mod conversation;
pub mod generation_fields;
pub mod generation_request;
mod generation_values;
pub mod message;
pub mod moderation;
pub mod pooling;
pub mod sampling;
pub mod several_answers;
mod structured_output;
pub mod tokenize;
mod tool_choice;
pub mod tools;

pub use generation_request::OutputConstraint;
