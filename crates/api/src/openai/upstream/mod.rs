//! The client's side of OpenAI's API, by which upstream engines are asked: a neutral request as a body, and
//! an engine's answer as neutral events.

mod body;
mod reader;

pub use body::request_body;
pub use reader::{AnswerReader, UnreadableAnswer};
