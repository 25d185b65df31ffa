//! The APIs beside OpenAI's.

mod anthropic;
mod ollama;
mod responses;
mod responses_socket;
mod served_tools;
mod served_tools_socket;
