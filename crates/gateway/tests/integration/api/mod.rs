//! Requests and answers: what is read, what is refused, what is written.

mod answers;
mod clients;
mod constraint_faults;
mod endings;
mod fuzz_corpus;
mod ignored;
pub mod images;
mod large_answers;
mod moderation;
mod moderation_classifier;
mod other_apis;
mod past_calls;
mod refusals;
mod several_answers;
mod structured_outputs;
mod tool_calls;
mod tool_grammars;
mod wire;
mod wire_properties;
mod wire_responses;
