//! Usage within the last minute, by quarters of a second. Does not know limits.

use std::collections::VecDeque;

use crate::time::{Nanos, Timestamp};

const BUCKET_NS: u64 = 250_000_000;
const WINDOW_NS: u64 = 60_000_000_000;
/// Number of buckets of a minute. Usage in a bucket counts until it is a minute since the bucket's end.
const N_BUCKETS: u64 = WINDOW_NS / BUCKET_NS + 1;

/// A quarter of a second, counted from the clock's origin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BucketId(u64);

impl BucketId {
    /// The bucket of a point in time.
    pub fn at(now: Timestamp) -> Self {
        Self(now.as_ns() / BUCKET_NS)
    }

    /// Time for which usage in this bucket still counts.
    pub fn counts_for(self, now: Timestamp) -> Nanos {
        Timestamp::from_ns((self.0 + N_BUCKETS).saturating_mul(BUCKET_NS)).since(now)
    }

    /// Whether a minute has passed between this bucket's end and `now`.
    pub fn is_over(self, now: Self) -> bool {
        now.0 >= self.0 + N_BUCKETS
    }
}

/// Number of requests and tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Use {
    pub requests: u64,
    pub tokens: u64,
}

impl Use {
    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.tokens += other.tokens;
    }

    fn take_away(&mut self, other: Self) {
        self.requests = self.requests.saturating_sub(other.requests);
        self.tokens = self.tokens.saturating_sub(other.tokens);
    }
}

/// Usage of the last minute: at most one entry a bucket.
#[derive(Debug, Clone, Default)]
pub(super) struct Window {
    buckets: VecDeque<(BucketId, Use)>,
    total: Use,
}

impl Window {
    /// Drops entries older than a minute.
    pub fn forget_before(&mut self, now: BucketId) {
        while let Some((_, used)) = self.buckets.pop_front_if(|(id, _)| id.is_over(now)) {
            self.total.take_away(used);
        }
    }

    /// Whether there is no usage.
    pub fn is_empty(&self) -> bool {
        self.total == Use::default()
    }

    /// Total usage in the window.
    pub fn total(&self) -> Use {
        self.total
    }

    /// Adds usage to the bucket `now`, after which no bucket may have usage.
    pub fn add(&mut self, now: BucketId, used: Use) {
        self.total.add(used);
        match self.buckets.back_mut() {
            Some((id, bucket)) if *id >= now => bucket.add(used),
            _ => self.buckets.push_back((now, used)),
        }
    }

    /// Subtracts usage from a bucket that still counts.
    pub fn take_back(&mut self, bucket: BucketId, used: Use) {
        let Ok(idx) = self.buckets.binary_search_by_key(&bucket, |(id, _)| *id) else { return };
        self.buckets[idx].1.take_away(used);
        self.total.take_away(used);
    }

    /// Bucket after whose end the count is lower by at least `amount`; `None` if the whole count is less than
    /// that.
    pub fn frees(&self, amount: u64, of: impl Fn(&Use) -> u64) -> Option<BucketId> {
        let mut freed = 0;
        self.buckets.iter().find_map(|(id, used)| {
            freed += of(used);
            (freed >= amount).then_some(*id)
        })
    }

    /// The last bucket with a use.
    pub fn last(&self, of: impl Fn(&Use) -> u64) -> Option<BucketId> {
        self.buckets.iter().rev().find(|(_, used)| of(used) > 0).map(|(id, _)| *id)
    }
}
