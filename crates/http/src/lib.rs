//! The HTTP server below the gateway: what knows sockets and HTTP, and bounds what clients can make it hold. Does not know
//! models, keys, or the formats of any API.
#![forbid(unsafe_code)]

pub mod awake;
pub mod byte_queue;
mod events;
pub mod memory;
mod phase;
pub mod tls_roots;

pub use events::Events;
pub use phase::{Phase, Shutdown};
