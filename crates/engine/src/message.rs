//! Messages to the engine thread. Does not handle them.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use throng_core::engine::Input;
use throng_core::engine::recording::LoadObserver;
use throng_core::request::Request;
use throng_core::time::Timestamp;

use crate::outbox::Outlet;

/// Channel to the engine thread. Its length is bounded by its content: requests that the intake has
/// counted, a few messages for each open stream, and the ends of the steps in flight.
pub type Inbox = Sender<Message>;

/// Messages to the engine thread.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are inputs, and a box would be allocated for each step"
)]
pub enum Message {
    /// A request that the intake has accepted, with its stream.
    Submit(Box<Submission>),
    /// An input that is passed to the core.
    Input(Input),
    /// Report all inputs from now on to this observer.
    Observe(Arc<dyn LoadObserver>),
    /// Finish the accepted requests, for at most `limit`, and stop.
    Drain {
        /// Longest time; `None` for no limit.
        limit: Option<Duration>,
        /// Sender that is dropped when the engine has stopped.
        stopped: Option<Sender<()>>,
    },
}

/// An accepted request on its way to the core.
#[derive(Debug)]
pub struct Submission {
    /// The request to submit.
    pub request: Request,
    /// Time at which it was submitted.
    pub arrived: Timestamp,
    /// Receiver of its events.
    pub outlet: Outlet,
}
