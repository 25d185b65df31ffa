//! The rooms of the `throng` binary: the command line, configuration and the wiring of all other crates.
#![forbid(unsafe_code)]

pub mod args;
pub mod bounds;
pub mod caches;
pub mod commands;
pub mod config;
pub mod conversation;
pub mod descriptors;
pub mod hub;
pub mod kv_budget;
pub mod line_queue;
pub mod logging;
pub mod memory;
pub mod output;
pub mod running;
pub mod signals;
pub mod source;
pub mod step_shares;
pub mod text_file;
pub mod usage_error;
pub mod vocabulary;
