//! Connections: protocols, encryption, slow and hostile peers, memory.

mod browsers;
mod framing;
mod h2_abuse;
mod half_close;
mod memory;
mod slow_readers;
mod tls;
mod websocket;
