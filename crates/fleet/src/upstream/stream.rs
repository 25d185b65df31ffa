//! The event stream of an answer: events in order, until the engine ends it, fails or stays silent for too
//! long. Does not know where events go.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use throng_http::awake::AwakeSleep;

use super::events::{EventKind, EventSplitter, classify};

/// Maximum wait for the rest of a response after its last event; afterwards the connection can be reused.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// A stream whose first event has arrived. Dropping it ends the request at the engine.
#[derive(Debug)]
pub struct UpstreamStream {
    /// Events received before the stream is read.
    first: VecDeque<(Bytes, EventKind)>,
    splitter: EventSplitter,
    body: Incoming,
    /// Completes when the engine has been silent for too long.
    silence: AwakeSleep,
    has_ended: bool,
}

/// Fault of an engine in the middle of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamFault {
    /// An event is too long.
    TooLong,
    /// The connection broke.
    BrokeOff,
    /// Timeout: the engine was silent for too long.
    Silent,
}

impl StreamFault {
    /// Message for operators.
    pub fn told(self) -> &'static str {
        match self {
            Self::TooLong => "an event of its stream is too large",
            Self::BrokeOff => "its stream broke off",
            Self::Silent => "it said nothing for too long",
        }
    }
}

impl UpstreamStream {
    /// Creates the stream after the events in `first` and the bytes in `splitter`; the rest is in `body`.
    /// It fails after a silence of `timeout`.
    pub(super) fn new(
        first: Vec<(Bytes, EventKind)>,
        splitter: EventSplitter,
        body: Incoming,
        timeout: Duration,
    ) -> Self {
        Self { first: first.into(), splitter, body, silence: AwakeSleep::new(timeout), has_ended: false }
    }

    /// Returns the next event, or `None` after the last. Cancel-safe.
    ///
    /// # Errors
    /// When the engine fails.
    pub async fn next(&mut self) -> Result<Option<(Bytes, EventKind)>, StreamFault> {
        if let Some(first) = self.first.pop_front() {
            return Ok(Some(first));
        }
        loop {
            if let Some(event) = self.splitter.next_event() {
                return Ok(Some(classified(event)));
            }
            if self.has_ended {
                return Ok(None);
            }
            let frame = tokio::select! {
                biased;
                frame = self.body.frame() => frame,
                () = &mut self.silence => return Err(StreamFault::Silent),
            };
            self.silence.restart();
            match frame {
                Some(Ok(frame)) => {
                    let data = frame.into_data().unwrap_or_default();
                    self.splitter.push(&data).map_err(|_| StreamFault::TooLong)?;
                }
                Some(Err(_)) => return Err(StreamFault::BrokeOff),
                None => {
                    self.has_ended = true;
                    if let Some(event) = self.splitter.last() {
                        return Ok(Some(classified(event)));
                    }
                }
            }
        }
    }

    /// Reads the rest after the last event in a separate task, so that the connection can be reused.
    pub fn finish(self) {
        let mut body = self.body;
        let rest = async move { while let Some(Ok(_)) = body.frame().await {} };
        tokio::spawn(tokio::time::timeout(END_TIMEOUT, rest));
    }
}

fn classified(event: Bytes) -> (Bytes, EventKind) {
    let kind = classify(&event);
    (event, kind)
}
