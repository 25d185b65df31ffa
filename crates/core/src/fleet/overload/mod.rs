//! Overload control: which requests wait, for how long, and which are refused at once. Decides from counts,
//! measured step times and the time that is passed in. Does not know how requests are queued and computed.

mod class;
mod gate;
mod predict;

pub use class::ServiceClass;
pub use gate::{AdmissionRequest, Gate, GateConfig, Overloaded, Ticket};
