//! Health of replicas: which are fit for requests, how many retries failures may cost, and which replica
//! may deliver to a stream. The caller reports attempts, probes, losses and tokens. Does not know
//! connections and policies.

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
