//! Decisions of the server: batching, block ownership, preemption, admission, routing.
//!
//! Plain structs with no I/O, no threads and no clock: `now` is always an argument. Everything here can be
//! driven by a real engine thread or by a virtual clock, and behaves the same. It does not know text, JSON,
//! tensors and devices.
#![forbid(unsafe_code)]

pub mod constraint;
pub mod engine;
pub mod exact;
pub mod fleet;
pub mod prompt_media;
pub mod request;
pub mod scheduling;
pub mod secret;
pub mod time;
pub mod timeline;
mod token;
