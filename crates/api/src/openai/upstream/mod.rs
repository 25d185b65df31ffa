//! The client side of OpenAI's API, for upstream engines: writes a neutral request as a body, and reads an
//! engine's answer as neutral events.

mod body;
mod reader;

pub use body::request_body;
pub use reader::{AnswerReader, UnreadableAnswer};
