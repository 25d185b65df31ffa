//! Answers to clients: the objects of answers and chunks in the form that is written. Does not know how
//! answers are generated.

pub mod chat_response;
pub mod completion_response;
pub mod files;
pub mod logprobs;
pub mod models;
pub mod pooling_response;
pub mod response;
pub mod usage;
