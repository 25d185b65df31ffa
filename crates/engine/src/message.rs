//! What is sent to the engine thread. Does not know what comes of it.

use std::fmt::Debug;
use std::sync::mpsc::Sender;
use std::time::Duration;

use throng_core::engine::Input;
use throng_core::engine::recording::Observed;
use throng_core::request::Request;
use throng_core::time::Timestamp;

use crate::outbox::Outlet;

/// The way to the engine thread. Bounded by what can be in it: requests that the intake has counted, an
/// abort, a resumption or so for each open stream, the ends of the steps in flight.
pub type Inbox = Sender<Message>;

/// Receiver of all that an engine does. The engine thread calls it: it must not wait.
pub trait EngineObserver: Debug + Send {
    /// The engine has taken an input in.
    fn observed(&mut self, observed: Observed);
}

/// Messages to the engine thread.
#[derive(Debug)]
pub enum Message {
    /// A request that the intake has let in, with its stream.
    Submit(Box<Submission>),
    /// Input that goes to the core as it is.
    Input(Input),
    /// Tell this observer of all inputs from now on.
    Observe(Box<dyn EngineObserver>),
    /// Finish what is there, for at most `limit`, and stop.
    Drain {
        /// Latest time; none: as long as it takes.
        limit: Option<Duration>,
        /// Dropped when the engine has stopped.
        stopped: Option<Sender<()>>,
    },
}

/// A request on its way in.
#[derive(Debug)]
pub struct Submission {
    /// The request.
    pub request: Request,
    /// Time at which it was handed in.
    pub arrived: Timestamp,
    /// Receiver of its events.
    pub outlet: Outlet,
}
