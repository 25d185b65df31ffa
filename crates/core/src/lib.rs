//! Decisions: batching, block ownership, preemption, admission, routing.
//!
//! Plain structs with no I/O, no threads and no clock: `now` is always an argument. Everything here can be
//! driven by a real engine thread or by a virtual clock, and behaves the same. It does not know text, JSON,
//! tensors and devices.
#![forbid(unsafe_code)]

pub mod admission;
pub mod autoscale;
pub mod batch;
pub mod beam_search;
pub mod block_exchange;
pub mod block_hash;
pub mod block_pool;
pub mod block_table;
pub mod constraint;
pub mod engine;
pub mod exact;
pub mod executor;
pub mod fleet;
pub mod forward_work;
pub mod health;
pub mod limits;
pub mod masks;
pub mod overload;
pub mod prompt_media;
pub mod replica;
pub mod request;
pub mod rollout;
pub mod routing;
pub mod scheduler;
pub mod sequence;
pub mod slot_pool;
pub mod speculation;
mod step_output;
pub mod time;
pub mod timeline;
mod token;
