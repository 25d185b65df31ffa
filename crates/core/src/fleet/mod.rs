//! Decisions about replicas and models: the replica of a request, failover to another one, and the models and
//! adapters that stay in memory.

mod adapters;
mod attempts;
pub mod autoscale;
mod dispatch;
mod failover;
pub mod health;
pub mod limits;
pub mod overload;
pub mod replica;
mod residency;
pub mod rollout;
pub mod routing;
mod tried;

pub use adapters::{AdapterNames, NameRefusal};
pub use attempts::Attempts;
pub use dispatch::{Attempt, Demand, Dispatch};
pub use failover::{Failover, Rest};
pub use residency::{Residency, Standing, Step};
pub use tried::{Retry, Tried};
