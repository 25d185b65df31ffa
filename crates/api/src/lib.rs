//! The APIs of clients: requests from bytes to checked types, and answers to bytes. Pure functions; does
//! not know sockets, engines and time.
#![forbid(unsafe_code)]

mod address_class;
pub mod answer;
pub mod anthropic;
mod cache_hints;
mod dialect;
pub mod error;
mod events;
pub mod field;
mod ignored;
mod image_hosts;
mod image_source;
pub mod json;
pub mod llama_cpp;
mod model_name;
pub mod ollama;
pub mod openai;
pub mod openapi;
pub mod responses;
mod service_headers;
pub mod spec;

pub use dialect::{AnswerFacts, AnswerView, AnswerWriter, Dialect, Request};
pub use error::{ApiError, ConstraintParam, ErrorType, SpentBudget};
pub use events::Events;
pub use field::ReadOptions;
pub use ignored::IgnoredParameters;
pub use image_hosts::{Addresses, ImageHosts, InvalidImageHost, host_name};
pub use service_headers::ServiceHeaders;
