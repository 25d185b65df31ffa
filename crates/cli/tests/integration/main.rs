//! The tests of `throng-cli` as one program, which is linked once. Tests that need a process of their own are
//! programs beside it.

mod compatibility;
mod configuration;
mod credentials;
mod devices;
mod discovery;
mod documents;
mod fleet;
mod handover;
mod hub;
mod load;
mod parameter_docs;
mod plan;
mod process;
mod resumption;
mod settings;
mod signals;
mod standard_streams;
mod start;
mod tokenizers;
mod tools;
mod units;
mod unreadable_pictures;
mod usage;
