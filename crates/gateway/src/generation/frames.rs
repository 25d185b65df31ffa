//! Complete answers as JSON in frames of bounded size, which are freed as they are sent. Does not know the
//! content of answers.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use serde::Serialize;
use throng_http::MAX_FRAME_BYTES;
use throng_http::memory::{MemoryBudget, Part, Reservation};
use tokio::sync::Semaphore;

use crate::caller::Caller;
use crate::rejection::memory_full;
use throng_api::ApiError;

/// Maximum bytes of a frame: the number that is handed over for sending at once, so that no frame is held
/// for its last part.
const FRAME_BYTES: usize = MAX_FRAME_BYTES;
/// Size of an answer up to which it is written on the calling thread; larger ones are written on a blocking
/// thread.
const INLINE_BYTES: usize = 32 << 10;

/// A complete answer, as the body of a response.
#[derive(Debug)]
pub(crate) struct Frames {
    frames: VecDeque<Bytes>,
    n_left: u64,
    memory: Reservation,
}

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Some(frame) = self.frames.pop_front() else { return Poll::Ready(None) };
        self.n_left -= frame.len() as u64;
        self.memory.give_back(frame.len());
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.n_left)
    }
}

/// Writer of an answer, which reserves memory as it grows.
#[derive(Debug)]
pub(crate) struct FrameWriter {
    filled: VecDeque<Bytes>,
    open: Vec<u8>,
    n_bytes: usize,
    max_bytes: usize,
    memory: Reservation,
    fault: Option<ApiError>,
}

impl FrameWriter {
    /// Creates a writer for an answer of at most `max_bytes` bytes; `memory` is empty.
    pub fn new(max_bytes: usize, memory: Reservation) -> Self {
        Self { filled: VecDeque::new(), open: Vec::new(), n_bytes: 0, max_bytes, memory, fault: None }
    }

    /// Writes `value` as JSON.
    ///
    /// # Errors
    /// Errors of [`Self::fill`].
    pub fn json(self, value: &impl Serialize) -> Result<Frames, ApiError> {
        self.fill(|out| Ok(serde_json::to_writer(out, value)?))
    }

    /// Writes an answer with `write`.
    ///
    /// # Errors
    /// 400 for an answer that is too large, 503 without memory.
    pub fn fill(
        mut self,
        write: impl FnOnce(&mut dyn io::Write) -> io::Result<()>,
    ) -> Result<Frames, ApiError> {
        let written = write(&mut self);
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        written.expect("answers are plain data with text keys");
        self.memory.set(self.n_bytes).map_err(memory_full)?;
        self.open.shrink_to_fit();
        self.filled.push_back(self.open.into());
        Ok(Frames { frames: self.filled, n_left: self.n_bytes as u64, memory: self.memory })
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), ApiError> {
        if self.n_bytes + bytes.len() > self.max_bytes {
            return Err(ApiError::answer_too_large(None, self.max_bytes));
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(FRAME_BYTES - self.open.len()));
            self.open.extend_from_slice(now);
            self.n_bytes += now.len();
            rest = later;
            if self.open.len() == FRAME_BYTES {
                self.filled.push_back(std::mem::take(&mut self.open).into());
                self.open.reserve_exact(FRAME_BYTES);
            }
        }
        let held = self.filled.len() * FRAME_BYTES + self.open.capacity();
        if held > self.memory.n_bytes() {
            self.memory.set(held).map_err(memory_full)?;
        }
        Ok(())
    }
}

impl io::Write for FrameWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.take(bytes) {
            Ok(()) => Ok(bytes.len()),
            Err(fault) => {
                self.fault = Some(fault);
                Err(io::ErrorKind::OutOfMemory.into())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Settings for writing answers.
#[derive(Debug)]
pub(crate) struct AnswerWriting {
    /// Bounds the number of large answers that are written at a time.
    places: Arc<Semaphore>,
    memory: Arc<MemoryBudget>,
    max_bytes: usize,
}

impl AnswerWriting {
    /// Creates settings for answers of at most `max_bytes`, counted in `memory`; `n_large` large ones are
    /// written at a time.
    pub fn new(n_large: usize, max_bytes: usize, memory: Arc<MemoryBudget>) -> Self {
        Self { places: Arc::new(Semaphore::new(n_large)), memory, max_bytes }
    }

    /// Writes an answer of about `n_bytes` bytes: on this thread if it is small, else on a blocking thread,
    /// a bounded number at a time.
    ///
    /// # Errors
    /// Errors of `write`; 500 if it panics.
    pub async fn write(
        &self,
        caller: &Caller,
        n_bytes: usize,
        write: impl FnOnce(FrameWriter) -> Result<Frames, ApiError> + Send + 'static,
    ) -> Result<Frames, ApiError> {
        let writer = FrameWriter::new(self.max_bytes, self.memory.reservation(Part::Answers));
        if n_bytes <= INLINE_BYTES {
            return write(writer);
        }
        let internal = || ApiError::internal_error(caller.id_text());
        let place = self.places.clone().acquire_owned().await.map_err(|_| internal())?;
        let written = tokio::task::spawn_blocking(move || {
            let frames = write(writer);
            drop(place);
            frames
        });
        written.await.map_err(|_| internal())?
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn an_answer_is_held_in_frames_that_are_freed_as_they_are_sent() {
        let budget = MemoryBudget::new(4 << 20);
        let text = "x".repeat(200_000);
        let writer = FrameWriter::new(1 << 20, budget.reservation(Part::Answers));
        let mut frames = writer.json(&text).expect("it fits");
        assert_eq!(budget.held(Part::Answers), text.len() + 2);
        let mut whole = Vec::new();
        while let Some(frame) = frames.frame().await {
            let data = frame.expect("never fails").into_data().expect("data");
            assert!(data.len() <= FRAME_BYTES);
            whole.extend_from_slice(&data);
            assert_eq!(budget.held(Part::Answers), text.len() + 2 - whole.len());
        }
        assert_eq!(whole, serde_json::to_vec(&text).expect("text"));
    }

    #[test]
    fn neither_its_own_bound_nor_the_memory_is_exceeded() {
        let write = |max_bytes, limit| {
            let budget = MemoryBudget::new(limit);
            let writer = FrameWriter::new(max_bytes, budget.reservation(Part::Answers));
            let refused = writer.json(&"x".repeat(2 << 20)).expect_err("too large");
            assert_eq!(budget.held(Part::Answers), 0);
            (refused.status().as_u16(), refused.code())
        };
        assert_eq!(write(1 << 20, 64 << 20), (400, "answer_too_large"));
        assert_eq!(write(4 << 20, 1 << 20), (413, "request_too_large"));
    }
}
