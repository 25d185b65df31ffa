//! The APIs beside OpenAI's.

mod anthropic;
mod ollama;
mod responses;
mod served_tools;
