//! Reads the body of a request as a whole, or discards it, within limits of bytes and memory. Does not know
//! the request.

use std::time::Duration;

use crate::memory::{MemoryFull, Reservation};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;

/// Maximum bytes of a refused request's body that are read and discarded, so that the connection can be
/// reused.
const DRAIN_BYTES: u64 = 64 << 10;
const DRAIN_TIME: Duration = Duration::from_secs(1);
/// Minimum bytes of the buffer for a body that arrives in several pieces.
const MIN_GROWN_BYTES: usize = 32 << 10;

/// A body with its memory reservation.
#[derive(Debug)]
pub struct HeldBody {
    /// Whole body.
    pub bytes: Bytes,
    /// Reservation of at least the body's bytes.
    pub memory: Reservation,
}

/// Reason why a body cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The body is longer than the limit.
    #[error("it is longer than {max_bytes} bytes")]
    TooLarge {
        /// Limit in bytes.
        max_bytes: usize,
    },
    /// There is no memory for it.
    #[error("there is no memory for it")]
    Memory(MemoryFull),
    /// The client disconnected before its end.
    #[error("the client stopped before its end")]
    Incomplete,
}

impl From<MemoryFull> for BodyError {
    fn from(full: MemoryFull) -> Self {
        Self::Memory(full)
    }
}

/// Reads the whole body, at most `max_bytes`, and reserves `memory` as bytes arrive.
///
/// # Errors
/// Any [`BodyError`].
pub async fn collect(
    body: &mut Incoming,
    max_bytes: usize,
    memory: &mut Reservation,
) -> Result<Bytes, BodyError> {
    let mut first = Bytes::new();
    let mut all = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| BodyError::Incomplete)?;
        let Ok(data) = frame.into_data() else { continue };
        let n_bytes = first.len() + all.len() + data.len();
        if n_bytes > max_bytes {
            return Err(BodyError::TooLarge { max_bytes });
        }
        if first.is_empty() && all.is_empty() {
            memory.cover(n_bytes)?;
            first = data;
            continue;
        }
        if n_bytes > all.capacity() {
            // Grows by a quarter instead of doubling: reserved bytes count against the memory limit.
            let capacity = (n_bytes + n_bytes / 4).max(MIN_GROWN_BYTES).min(max_bytes);
            memory.set(capacity)?;
            all.reserve_exact(capacity - all.len());
        }
        if all.is_empty() {
            all.extend_from_slice(&std::mem::take(&mut first));
        }
        all.extend_from_slice(&data);
    }
    Ok(if all.is_empty() { first } else { all.into() })
}

/// Reads and discards the rest of a small body. Returns whether its end was reached.
pub async fn drain(mut body: Incoming) -> bool {
    use hyper::body::Body;
    if body.is_end_stream() {
        return true;
    }
    if body.size_hint().upper().is_none_or(|n| n > DRAIN_BYTES) {
        return false;
    }
    let read_all = async {
        while let Some(frame) = body.frame().await {
            if frame.is_err() {
                return false;
            }
        }
        true
    };
    tokio::time::timeout(DRAIN_TIME, read_all).await.unwrap_or(false)
}
