//! Values of `Retry-After` for refused clients. Does not know the reasons.

/// Maximum seconds of a random wait. Clients that retried all at once would find the queue full again.
const MAX_RETRY_AFTER_S: u32 = 4;

/// Random seconds after which a refused client may retry.
pub fn retry_after_s() -> u32 {
    fastrand::u32(1..=MAX_RETRY_AFTER_S)
}

/// Random seconds for a client that finds room in `ms`: at least that, and up to half as much again, so
/// that not all refused clients retry at once.
pub fn retry_after_at_least_s(ms: u64) -> u32 {
    let least = u32::try_from(ms.div_ceil(1_000)).unwrap_or(u32::MAX).max(1);
    least.saturating_add(fastrand::u32(0..=least / 2))
}
