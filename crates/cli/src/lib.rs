//! The rooms of the `throng` binary: the command line, configuration and the wiring of all other crates.
#![forbid(unsafe_code)]

pub mod args;
pub mod hub;
pub mod memory;
pub mod vocabulary;
