//! The engine's ends of all streams: hands events to their readers and sees who is behind. Never waits for a reader. Does
//! not know when a step runs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use throng_core::request::RequestId;
use throng_core::timeline::request_trace::RequestTrace;
use tokio::sync::mpsc;

use crate::error::EngineFailure;
use crate::event::StreamEvent;

/// What both ends of a stream share beside its events.
#[derive(Debug)]
pub struct StreamLink {
    /// Set before the engine closes the channel of a request that failed.
    pub failure: OnceLock<EngineFailure>,
    /// Set when the request has ended, whether anyone reads the stream or not.
    trace: OnceLock<Arc<RequestTrace>>,
    /// With events of this weight waiting the reader is behind.
    high_mark: usize,
    /// Weight of the events that wait.
    n_waiting: AtomicUsize,
    /// The engine was told that the reader is behind, and waits to be told that it has caught up.
    is_behind: AtomicBool,
}

impl StreamLink {
    /// The link of a stream whose reader is behind with events of weight `high_mark` waiting, and has caught up with half of
    /// that.
    pub fn new(high_mark: usize) -> Self {
        let (n_waiting, is_behind) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { failure: OnceLock::new(), trace: OnceLock::new(), high_mark, n_waiting, is_behind }
    }

    /// Notes that an event of this weight waits. The weight of all that waits, when the reader is behind and the engine does
    /// not know that yet; the reader will then tell when it has caught up.
    ///
    /// Sequentially consistent, as [`Self::taken`] is: the engine marks the reader as behind before it looks at what waits a
    /// second time, and the reader takes an event before it looks at the mark. One of the two sees what the other did, so
    /// that no request stays paused with nobody to resume it.
    fn sent(&self, weight: usize) -> Option<usize> {
        let n_waiting = self.n_waiting.fetch_add(weight, Ordering::SeqCst) + weight;
        if n_waiting < self.high_mark || self.is_behind.swap(true, Ordering::SeqCst) {
            return None;
        }
        let n_waiting = self.n_waiting.load(Ordering::SeqCst);
        // When another has taken the mark away, the reader has told that it caught up: the engine then hears both.
        let caught_up = n_waiting <= self.low_mark() && self.is_behind.swap(false, Ordering::SeqCst);
        (!caught_up).then_some(n_waiting)
    }

    /// Notes that the reader took an event of this weight. Whether it has to tell that it has caught up.
    pub fn taken(&self, weight: usize) -> bool {
        let n_waiting = self.n_waiting.fetch_sub(weight, Ordering::SeqCst) - weight;
        n_waiting <= self.low_mark()
            && self.is_behind.load(Ordering::SeqCst)
            && self.is_behind.swap(false, Ordering::SeqCst)
    }

    fn low_mark(&self) -> usize {
        self.high_mark / 2
    }
}

/// Where the trace of a request is found once it has ended. It can be kept when the stream is gone.
#[derive(Debug, Clone)]
pub struct TraceSlot(Arc<StreamLink>);

impl TraceSlot {
    /// Of the stream with this link.
    pub(crate) fn new(link: &Arc<StreamLink>) -> Self {
        Self(Arc::clone(link))
    }

    /// Where the request's time went; `None` before its end.
    pub fn get(&self) -> Option<&Arc<RequestTrace>> {
        self.0.trace.get()
    }
}

/// The engine's end of one stream.
#[derive(Debug)]
pub struct Outlet {
    /// Where the events go. Its bound is the high mark of the link, past which the request is paused, and what one step adds.
    pub events: mpsc::UnboundedSender<StreamEvent>,
    /// What is shared with the reader.
    pub link: Arc<StreamLink>,
}

impl Outlet {
    /// Ends the stream with a failure.
    pub fn fail(self, failure: EngineFailure) {
        // Set once: the outlet is gone with it.
        let _ = self.link.failure.set(failure);
    }
}

/// All streams.
#[derive(Debug, Default)]
pub struct Outbox {
    outlets: BTreeMap<RequestId, Outlet>,
}

impl Outbox {
    /// Adds a stream.
    pub fn open(&mut self, request: RequestId, outlet: Outlet) {
        self.outlets.insert(request, outlet);
    }

    /// Hands an event to the reader. The weight of all that waits, when the reader has just fallen behind.
    pub fn send(&mut self, request: RequestId, event: StreamEvent) -> Option<usize> {
        let outlet = self.outlets.get(&request)?;
        // Counted before it can be taken.
        let behind = outlet.link.sent(event.weight());
        // A closed channel means that the stream was dropped; its abort is on the way.
        let _ = outlet.events.send(event);
        behind
    }

    /// Ends a stream: its reader gets what waits, and then the failure if there is one.
    pub fn close(&mut self, request: RequestId, failure: Option<EngineFailure>, trace: Arc<RequestTrace>) {
        let Some(outlet) = self.outlets.remove(&request) else { return };
        let _ = outlet.link.trace.set(trace);
        if let Some(failure) = failure {
            outlet.fail(failure);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_is_behind_at_the_high_mark_and_catches_up_at_half_of_it() {
        let link = StreamLink::new(8);
        for _ in 0..7 {
            assert_eq!(link.sent(1), None);
        }
        assert_eq!(link.sent(3), Some(10));
        assert_eq!(link.sent(1), None, "the engine knows already");
        for _ in 0..6 {
            assert!(!link.taken(1));
        }
        assert!(link.taken(1), "4 are left");
        assert!(!link.taken(1), "it has told already");
        assert_eq!(link.sent(5), Some(8), "behind again");
    }
}
