//! The body of a response as hyper reads it: in bounded frames, counted until they are written. Does not
//! know the content.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::outflow::{HeldFrame, Outflow};
use crate::connection::{InFlight, MAX_FRAME_BYTES};
use crate::memory::{MemoryBudget, Reservation};

/// A response's body that ends its request with it, and yields frames of bounded size.
#[derive(Debug)]
pub struct ResponseBody<B, G> {
    body: B,
    /// Rest of a frame that was too large to be sent at once.
    rest: Bytes,
    /// Reservation for `rest`.
    rest_memory: Reservation,
    outflow: Arc<Outflow>,
    _guard: G,
    in_flight: InFlight,
}

impl<B, G> ResponseBody<B, G> {
    /// Creates the response to the request `in_flight`. Its frames count against `memory`; `guard` is
    /// dropped at its end.
    pub fn new(body: B, memory: &Arc<MemoryBudget>, in_flight: InFlight, guard: G) -> Self {
        let outflow = Outflow::of_task(memory);
        in_flight.state.presence.response_begins();
        in_flight.state.count_given_frame();
        let rest_memory = outflow.count(0);
        Self { body, rest: Bytes::new(), rest_memory, outflow, _guard: guard, in_flight }
    }
}

impl<B, G> Body for ResponseBody<B, G>
where
    B: Body<Data = Bytes> + Unpin,
    G: Unpin,
{
    type Data = HeldFrame;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<HeldFrame>, B::Error>>> {
        let this = &mut *self;
        if this.rest.is_empty() {
            let Some(frame) = ready!(Pin::new(&mut this.body).poll_frame(cx)?) else {
                return Poll::Ready(None);
            };
            match frame.into_data() {
                Ok(data) => {
                    this.rest_memory = this.outflow.count(data.len());
                    this.rest = data;
                }
                Err(frame) => return Poll::Ready(frame.into_trailers().ok().map(|t| Ok(Frame::trailers(t)))),
            }
        }
        this.in_flight.state.count_given_frame();
        let n_bytes = this.rest.len().min(MAX_FRAME_BYTES);
        this.rest_memory.give_back(n_bytes);
        Poll::Ready(Some(Ok(Frame::data(this.outflow.hold(this.rest.split_to(n_bytes))))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (of_body, n_rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(of_body.lower() + n_rest);
        if let Some(upper) = of_body.upper() {
            hint.set_upper(upper + n_rest);
        }
        hint
    }
}
