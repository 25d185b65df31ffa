//! What clients get: the objects of answers and of chunks as they are written. Does not know how answers come
//! about.

pub mod chat_response;
pub mod completion_response;
pub mod files;
pub mod logprobs;
pub mod models;
pub mod pooling_response;
pub mod response;
pub mod usage;
