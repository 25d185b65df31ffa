//! The `throng` binary as a library: the command line, configuration and the wiring of all other crates.
#![forbid(unsafe_code)]

pub mod args;
pub mod attachments;
pub mod bounds;
pub mod commands;
pub mod config;
pub mod conversation;
pub mod error_chain;
pub mod kv_budget;
pub mod load;
pub mod model_cache;
pub mod observability;
pub mod process;
pub mod recording;
pub mod running;
pub mod source;
pub mod speculation;
pub mod spelling;
pub mod step_shares;
pub mod text_file;
pub mod usage_error;
pub mod vocabulary;
