//! What a failure may cost, and who may deliver to a stream. Plain structs that are told attempts, losses and tokens; they do
//! not know connections and policies.

mod ownership;
mod retry;

pub use ownership::{Delivery, Epoch, Ownership, StreamId, TooManyStreams};
pub use retry::RetryBudget;
