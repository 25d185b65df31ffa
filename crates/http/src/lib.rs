//! The HTTP server below the gateway: what knows sockets and HTTP, and bounds what clients can make it hold. Does not know
//! models, keys, or the formats of any API.
#![forbid(unsafe_code)]

pub mod awake;
pub mod byte_queue;
pub mod memory;
mod phase;

pub use phase::{Phase, Shutdown};
