//! The engine's ends of all streams: gathers events until they are handed to their readers, and detects
//! readers that are behind. Never waits for a reader. Does not know when a step runs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use throng_core::engine::{EngineFailure, StreamEvent};
use throng_core::request::RequestId;
use throng_core::timeline::request_trace::RequestTrace;
use tokio::sync::mpsc;

/// State that both ends of a stream share beside its events.
#[derive(Debug)]
pub struct StreamLink {
    /// Set before the engine closes the channel of a request that failed.
    pub failure: OnceLock<EngineFailure>,
    /// Set when the request has ended, whether anyone reads the stream or not.
    trace: OnceLock<Arc<RequestTrace>>,
    /// Weight of waiting events from which the reader counts as behind.
    high_mark: usize,
    /// Weight of the waiting events.
    n_waiting: AtomicUsize,
    /// Whether the reader was reported as behind and not yet as caught up.
    is_behind: AtomicBool,
}

impl StreamLink {
    /// Creates the link of a stream whose reader is behind with events of weight `high_mark` waiting, and
    /// has caught up with half of that.
    pub fn new(high_mark: usize) -> Self {
        let (n_waiting, is_behind) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { failure: OnceLock::new(), trace: OnceLock::new(), high_mark, n_waiting, is_behind }
    }

    /// Counts a waiting event of this weight. Returns the weight of all waiting events if the reader is now
    /// behind; it must then be reported as caught up later.
    ///
    /// Sequentially consistent, as [`Self::taken`] is: the engine marks the reader as behind before it checks
    /// the waiting events a second time, and the reader takes an event before it checks the mark. One of the
    /// two observes the other's change, so that a paused request is always resumed.
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

    /// Notes that the reader took an event of this weight. Returns whether it must be reported as caught
    /// up.
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

/// Slot of a request's trace, filled once the request has ended. It may outlive the stream.
#[derive(Debug, Clone)]
pub struct TraceSlot(Arc<StreamLink>);

impl TraceSlot {
    /// Creates the outbox of the stream with this link.
    pub(crate) fn new(link: &Arc<StreamLink>) -> Self {
        Self(Arc::clone(link))
    }

    /// Trace of the request; `None` before its end.
    pub fn get(&self) -> Option<&Arc<RequestTrace>> {
        self.0.trace.get()
    }
}

/// The engine's end of one stream.
#[derive(Debug)]
pub struct Outlet {
    /// Sender of the events, bounded by the link's high mark, past which the request is paused, and the
    /// events of one step.
    pub events: mpsc::UnboundedSender<StreamEvent>,
    /// State shared with the reader.
    pub link: Arc<StreamLink>,
}

impl Outlet {
    /// Ends the stream with a failure.
    pub fn fail(self, failure: EngineFailure) {
        // Set once: the outlet is gone with it.
        let _ = self.link.failure.set(failure);
    }
}

/// Ends of all streams.
#[derive(Debug, Default)]
pub struct Outbox {
    outlets: BTreeMap<RequestId, Outlet>,
    /// Events that have not been handed over, in order; at most those of one step for each stream.
    gathered: Vec<(RequestId, Gathered)>,
}

/// Event that waits to be handed to a reader.
#[derive(Debug)]
enum Gathered {
    Event(StreamEvent),
    /// The end of the stream, which follows its events, and the failure if there is one.
    End {
        failure: Option<EngineFailure>,
        trace: Arc<RequestTrace>,
    },
}

impl Outbox {
    /// Adds a stream.
    pub fn open(&mut self, request: RequestId, outlet: Outlet) {
        if self.outlets.contains_key(&request) {
            // A request that has ended had the same number, and its end was not handed over.
            self.hand_over();
        }
        self.outlets.insert(request, outlet);
    }

    /// Adds an event for the reader. Returns the weight of all waiting events if the reader has just fallen
    /// behind.
    pub fn add(&mut self, request: RequestId, event: StreamEvent) -> Option<usize> {
        let outlet = self.outlets.get(&request)?;
        // Counted before it can be taken.
        let behind = outlet.link.sent(event.weight());
        self.gathered.push((request, Gathered::Event(event)));
        behind
    }

    /// Ends a stream after its added events.
    pub fn close(&mut self, request: RequestId, failure: Option<EngineFailure>, trace: Arc<RequestTrace>) {
        self.gathered.push((request, Gathered::End { failure, trace }));
    }

    /// Hands over all added events. A reader is woken by its first event: the others, as the end of a short
    /// answer, follow at once, so that it finds them together.
    pub fn hand_over(&mut self) {
        for (request, gathered) in self.gathered.drain(..) {
            match gathered {
                Gathered::Event(event) => {
                    if let Some(outlet) = self.outlets.get(&request) {
                        // A closed channel means that the stream was dropped; its abort is on the way.
                        let _ = outlet.events.send(event);
                    }
                }
                Gathered::End { failure, trace } => {
                    let Some(outlet) = self.outlets.remove(&request) else { continue };
                    let _ = outlet.link.trace.set(trace);
                    if let Some(failure) = failure {
                        outlet.fail(failure);
                    }
                }
            }
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

    fn stream() -> (Outlet, mpsc::UnboundedReceiver<StreamEvent>) {
        let (events, receiver) = mpsc::unbounded_channel();
        (Outlet { events, link: Arc::new(StreamLink::new(8)) }, receiver)
    }

    fn prompt(cached_tokens: u32) -> StreamEvent {
        StreamEvent::Prompt { cached_tokens, logprobs: vec![] }
    }

    #[test]
    fn a_reader_gets_nothing_before_all_is_handed_over() {
        let (outlet, mut receiver) = stream();
        let mut outbox = Outbox::default();
        outbox.open(RequestId(1), outlet);
        outbox.add(RequestId(1), prompt(1));
        outbox.close(RequestId(1), None, Arc::default());
        assert!(receiver.try_recv().is_err());
        outbox.hand_over();
        assert_eq!(receiver.try_recv(), Ok(prompt(1)));
        assert_eq!(receiver.try_recv(), Err(mpsc::error::TryRecvError::Disconnected));
    }

    #[test]
    fn a_request_with_the_number_of_one_that_has_just_ended_gets_its_own_events_only() {
        let ((first, mut of_first), (second, mut of_second)) = (stream(), stream());
        let mut outbox = Outbox::default();
        outbox.open(RequestId(1), first);
        outbox.add(RequestId(1), prompt(1));
        outbox.close(RequestId(1), Some(EngineFailure::Stopped), Arc::default());
        outbox.open(RequestId(1), second);
        outbox.add(RequestId(1), prompt(2));
        outbox.hand_over();
        assert_eq!(of_first.try_recv(), Ok(prompt(1)));
        assert_eq!(of_first.try_recv(), Err(mpsc::error::TryRecvError::Disconnected));
        assert_eq!(of_second.try_recv(), Ok(prompt(2)));
        assert_eq!(of_second.try_recv(), Err(mpsc::error::TryRecvError::Empty));
    }
}
