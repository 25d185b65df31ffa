//! The process and its machine: memory, caches, descriptors, signals, systemd and standard streams. Does
//! not know models.

pub mod caches;
pub mod core_dumps;
pub mod credentials;
pub mod descriptors;
pub mod handover;
pub mod line_queue;
pub mod logging;
pub mod memory;
pub mod output;
pub mod runtime;
pub mod signals;
pub mod systemd;
pub mod wrapping;
