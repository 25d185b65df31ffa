//! Answers of models as text, reasoning and calls.

mod answer_format;
mod answer_parser;
mod corpus;
mod moderation;
