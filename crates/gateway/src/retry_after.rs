//! When refused clients are told to come back. Does not know why they were refused.

/// Clients that come back all at once would find the queue full again: they are told to wait 1 to this many
/// seconds.
const MAX_RETRY_AFTER_S: u32 = 4;

/// Seconds after which a refused client may try again.
pub(crate) fn retry_after_s() -> u32 {
    fastrand::u32(1..=MAX_RETRY_AFTER_S)
}

/// Seconds after which there will be room again in `ms`: not fewer, and up to half as many more, so that not
/// all who were refused come back at once.
pub(crate) fn retry_after_at_least_s(ms: u64) -> u32 {
    let least = u32::try_from(ms.div_ceil(1_000)).unwrap_or(u32::MAX).max(1);
    least.saturating_add(fastrand::u32(0..=least / 2))
}
