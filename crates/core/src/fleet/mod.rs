//! Decisions about replicas and models: which replicas a request may be submitted to, which models stay in
//! memory.

mod residency;
mod tried;

pub use residency::{Residency, Standing, Step};
pub use tried::Tried;
