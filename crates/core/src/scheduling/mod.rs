//! Decisions inside one engine: the tokens of each sequence in a step, their blocks and slots, and the
//! effect of the results. Does not know replicas and fleets.

pub mod admission;
pub mod batch;
pub mod beam_search;
mod block;
pub mod block_exchange;
pub mod block_hash;
pub mod block_pool;
pub mod block_store;
pub mod block_table;
pub mod executor;
pub mod forward_work;
pub mod masks;
pub(crate) mod name_hasher;
pub mod scheduler;
pub mod sequence;
mod service_rate;
pub mod slot_pool;
pub mod speculation;
mod step_output;

pub use service_rate::{ServiceRate, StepTime};
