//! The body of a request, read as a whole or away, within bounds of bytes and memory. Does not know the
//! request.

use std::time::Duration;

use crate::memory::{MemoryFull, Reservation};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;

/// A refused request's body up to this size is read away, so that the connection can be used again.
const DRAIN_BYTES: u64 = 64 << 10;
const DRAIN_TIME: Duration = Duration::from_secs(1);
/// A body that comes in several pieces is gathered in a buffer of at least this size.
const MIN_GROWN_BYTES: usize = 32 << 10;

/// A body, and the memory that is reserved for it.
#[derive(Debug)]
pub struct HeldBody {
    /// All of it.
    pub bytes: Bytes,
    /// Reserves at least its bytes.
    pub memory: Reservation,
}

/// Reason why a body cannot be read as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The body is longer than the caller takes.
    #[error("it is longer than {max_bytes} bytes")]
    TooLarge {
        /// Most bytes that the caller takes.
        max_bytes: usize,
    },
    /// There is no memory for it.
    #[error("there is no memory for it")]
    Memory(MemoryFull),
    /// The client stopped before its end.
    #[error("the client stopped before its end")]
    Incomplete,
}

impl From<MemoryFull> for BodyError {
    fn from(full: MemoryFull) -> Self {
        Self::Memory(full)
    }
}

/// Reads all of it, at most `max_bytes`, which `memory` covers as they come.
///
/// # Errors
/// Returns a [`BodyError`].
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

/// Reads and drops what is left of a small body. Returns whether it came to its end.
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
