//! What to do when more is asked than can be computed: who may wait, for how long, and who is refused at
//! once. Plain decisions from counts, measured step times and the time that is handed in. Does not know how
//! requests are queued and computed.

mod class;
mod gate;
mod predict;
#[cfg(test)]
mod schedules;

pub use class::ServiceClass;
pub use gate::{AdmissionRequest, Gate, GateConfig, Overloaded, Ticket};
