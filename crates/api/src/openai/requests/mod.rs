//! Requests of clients: the parameters of each endpoint, read strictly and checked. Does not know how
//! requests are served.

pub mod adapters;
pub mod batch;
pub mod chat;
pub mod completion;
pub mod conversation;
mod defaults;
mod early_stopping;
pub mod generation_fields;
mod generation_values;
pub mod message;
pub mod moderation;
pub mod pooling;
mod structured_output;
pub mod tokenize;
mod tool_choice;
pub mod tools;

pub use defaults::drop_invalid;
