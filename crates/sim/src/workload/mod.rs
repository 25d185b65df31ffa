//! Workloads: requests with their sizes and times, generated or read from traces. A workload is pulled, one
//! request at a time, so that a day of a crowd needs no more memory than a minute.
//!
//! A module imports only from modules above it: `request`, `arrivals`, then the workloads.

mod arrivals;
mod closed_loop;
mod open_loop;
mod request;
mod sessions;
pub mod trace;

pub use arrivals::{ArrivalProcess, Arrivals};
pub use closed_loop::ClosedLoop;
pub use open_loop::{OpenLoop, RequestShape};
pub use request::{EndedRequest, SimRequest, Span, TimedRequest, content_id, token_of};
pub use sessions::{SessionShape, Sessions};

use std::fmt::Debug;

use crate::error::SimError;

/// Source of the requests of a simulation.
pub trait Workload: Debug + Send {
    /// The next request whose time does not depend on other requests; `None` after the last. Times do not
    /// decrease.
    ///
    /// # Errors
    /// When the source cannot be read.
    fn next_request(&mut self) -> Result<Option<TimedRequest>, SimError>;

    /// Follow-up of a request that has ended, not earlier than its end: the next turn of a session, the next
    /// request of a user.
    fn follow_up(&mut self, _ended: &EndedRequest) -> Option<TimedRequest> {
        None
    }
}

impl Workload for Box<dyn Workload> {
    fn next_request(&mut self) -> Result<Option<TimedRequest>, SimError> {
        (**self).next_request()
    }

    fn follow_up(&mut self, ended: &EndedRequest) -> Option<TimedRequest> {
        (**self).follow_up(ended)
    }
}
