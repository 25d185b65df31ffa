//! Which replicas are fit for requests, what a failure may cost, and who may deliver to a stream. Plain
//! structs that are told attempts, probes, losses and tokens; they do not know connections and policies.

mod board;
mod config;
mod ownership;
mod record;
mod retry;

pub use board::{Board, Probe};
pub use config::HealthConfig;
pub use ownership::{Delivery, Epoch, Ownership, StreamId, TooManyStreams};
pub use record::{Cause, State};
pub use retry::RetryBudget;
