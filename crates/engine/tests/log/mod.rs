//! A log that does one thing with every line. It is global, so each test that sets one is a program of its
//! own.

use tracing::{Event, Metadata, Subscriber, span};

/// Calls this function for every line.
pub struct OnLine(pub fn());

impl Subscriber for OnLine {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &Event<'_>) {
        (self.0)();
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
