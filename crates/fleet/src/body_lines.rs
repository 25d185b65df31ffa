//! Reads a body from a gateway or a worker line by line as it arrives. Does not know the meaning of lines.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http_body::Body;
use hyper::body::Incoming;
use throng_wire::LineBuffer;

/// Size in bytes above which a line's buffer is freed once the line has been taken.
const LONG_BYTES: usize = 16 << 10;

/// Reason why there is no next line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LinesError {
    /// The body ended before its end.
    #[error("the body was broken off")]
    Broken,
    /// A line is too long.
    #[error("a line is too long")]
    TooLong,
    /// There is no memory for the line at present.
    #[error("there is no memory for it")]
    NoMemory,
}

/// Reserves this many bytes in total and returns whether they fit; 0 releases them.
pub type Room = Box<dyn FnMut(usize) -> bool + Send>;

/// The lines of a body.
pub struct BodyLines {
    body: Option<Incoming>,
    buffer: LineBuffer,
    room: Option<Room>,
    n_bytes: usize,
}

impl BodyLines {
    /// Creates a reader at the start of a body. It reserves memory with `room`.
    pub fn new(body: Option<Incoming>, room: Option<Room>) -> Self {
        Self { body, buffer: LineBuffer::default(), room, n_bytes: 0 }
    }

    /// Returns the next line without its end; `None` at the end of the body.
    ///
    /// # Errors
    /// Any [`LinesError`].
    pub fn poll_line(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Vec<u8>>, LinesError>> {
        loop {
            if let Some(line) = self.buffer.next_line() {
                let line = line.to_vec();
                if line.len() >= LONG_BYTES && !self.buffer.is_inside_line() {
                    self.forget_buffer();
                }
                return Poll::Ready(Ok(Some(line)));
            }
            let Some(body) = &mut self.body else { return Poll::Ready(Ok(None)) };
            let Some(frame) = ready!(Pin::new(body).poll_frame(cx)) else {
                self.body = None;
                continue;
            };
            let Ok(data) = frame.map_err(|_| LinesError::Broken)?.into_data() else { continue };
            if !self.buffer.is_inside_line() {
                self.n_bytes = 0;
            }
            self.n_bytes += data.len();
            if self.room.as_mut().is_some_and(|has_room| !has_room(self.n_bytes)) {
                return Poll::Ready(Err(LinesError::NoMemory));
            }
            self.buffer.push(&data).map_err(|_| LinesError::TooLong)?;
        }
    }

    /// Waits for the next line like [`Self::poll_line`].
    ///
    /// # Errors
    /// The errors of [`Self::poll_line`].
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, LinesError> {
        std::future::poll_fn(|cx| self.poll_line(cx)).await
    }

    /// Waits for exactly `n` bytes that follow the line that was taken last.
    ///
    /// # Errors
    /// The errors of [`Self::poll_line`].
    pub async fn bytes(&mut self, n: usize) -> Result<Vec<u8>, LinesError> {
        let mut bytes = Vec::new();
        if self.room.as_mut().is_some_and(|has_room| !has_room(n)) {
            return Err(LinesError::NoMemory);
        }
        bytes.extend_from_slice(self.buffer.take_bytes(n));
        while bytes.len() < n {
            let body = self.body.as_mut().ok_or(LinesError::Broken)?;
            let frame = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await;
            let data = frame.ok_or(LinesError::Broken)?.map_err(|_| LinesError::Broken)?.into_data();
            let Ok(data) = data else { continue };
            let (own, rest) = data.split_at(data.len().min(n - bytes.len()));
            bytes.extend_from_slice(own);
            self.buffer.push(rest).map_err(|_| LinesError::TooLong)?;
        }
        if !self.buffer.is_inside_line() {
            self.forget_buffer();
        }
        Ok(bytes)
    }

    fn forget_buffer(&mut self) {
        self.buffer = LineBuffer::default();
        self.n_bytes = 0;
        if let Some(has_room) = &mut self.room {
            has_room(0);
        }
    }
}

impl fmt::Debug for BodyLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyLines").field("buffer", &self.buffer).finish_non_exhaustive()
    }
}
