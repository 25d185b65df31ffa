//! The OpenAI wire: request and response types, strict JSON, validation, errors. Pure functions over bytes;
//! refuses to know sockets, engines and time.

pub mod error;
pub mod field;
pub mod json;

pub use error::{ApiError, ErrorType};
