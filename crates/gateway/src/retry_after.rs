//! When refused clients are told to come back. Does not know why they were refused.

/// Clients that come back all at once would find the queue full again: they are told to wait 1 to this many
/// seconds.
const MAX_RETRY_AFTER_S: u32 = 4;

/// Seconds after which a refused client may try again.
pub(crate) fn retry_after_s() -> u32 {
    fastrand::u32(1..=MAX_RETRY_AFTER_S)
}
