//! Definitions of latency, the same for the server's metrics, the simulator and the load tool:
//!
//! - *First token*: from the moment a request is sent (or received, at a server) to its first output token.
//! - *Gap*: between two consecutive output tokens of one answer. Tokens that arrive together have gaps of 0.
//! - *Mean gap*: from the first token to the last, divided by the number of gaps (TPOT).
//! - *End to end*: from the moment a request is sent to the end of its answer.
//! - *Percentile* `p` of a set: the smallest value that at least `p` percent of the set do not exceed
//!   (nearest rank).
//! - *Goodput*: requests a second that got their whole answer within the objective.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::{Nanos, Timestamp};

/// Mean gap of `n_tokens` tokens of which the last arrived `decode` after the first; `None` before the
/// second.
pub fn mean_gap(decode: Duration, n_tokens: u32) -> Option<Duration> {
    let n_gaps = n_tokens.checked_sub(1).filter(|&n| n > 0)?;
    Some(decode / n_gaps)
}

/// Times of the tokens of one answer, as observed at one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenClock {
    sent: Timestamp,
    first: Option<Timestamp>,
    last: Option<Timestamp>,
    n_tokens: u32,
}

impl TokenClock {
    /// The clock of a request that is sent now.
    pub const fn new(sent: Timestamp) -> Self {
        Self { sent, first: None, last: None, n_tokens: 0 }
    }

    /// Notes a token and returns its gap to the one before.
    #[inline]
    pub fn note(&mut self, at: Timestamp) -> Option<Nanos> {
        self.n_tokens += 1;
        match self.last.replace(at) {
            None => {
                self.first = Some(at);
                None
            }
            Some(last) => Some(at.since(last)),
        }
    }

    /// Number of tokens so far.
    pub const fn n_tokens(&self) -> u32 {
        self.n_tokens
    }

    /// Time at which the request was sent.
    pub const fn sent(&self) -> Timestamp {
        self.sent
    }

    /// Time of the last token.
    pub const fn last(&self) -> Option<Timestamp> {
        self.last
    }

    /// Latency of an answer that ends now.
    pub fn end(&self, at: Timestamp, is_whole: bool) -> RequestLatency {
        let decode = self.first.zip(self.last).map(|(first, last)| Duration::from_nanos(last.since(first).0));
        RequestLatency {
            first_token: self.first.map(|first| first.since(self.sent)),
            mean_gap: decode.and_then(|decode| mean_gap(decode, self.n_tokens)).map(Nanos::from),
            end_to_end: at.since(self.sent),
            is_whole,
        }
    }
}

/// Latency of one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestLatency {
    /// Time to the first token; `None` without a token.
    pub first_token: Option<Nanos>,
    /// Mean gap; `None` for fewer than two tokens.
    pub mean_gap: Option<Nanos>,
    /// Time from the request to the end of its answer.
    pub end_to_end: Nanos,
    /// Whether the answer is complete.
    pub is_whole: bool,
}

/// Objective that a good answer meets; an absent part does not restrict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Objective {
    /// Longest time to the first token.
    pub first_token: Option<Nanos>,
    /// Maximum mean gap of an answer.
    pub mean_gap: Option<Nanos>,
    /// Longest time to the end.
    pub end_to_end: Option<Nanos>,
}

impl Objective {
    /// Whether an answer is whole and meets the objective.
    pub fn is_met_by(&self, latency: &RequestLatency) -> bool {
        let within = |limit: Option<Nanos>, value: Nanos| limit.is_none_or(|limit| value <= limit);
        latency.is_whole
            && latency.first_token.map_or(self.first_token.is_none(), |time| within(self.first_token, time))
            && within(self.mean_gap, latency.mean_gap.unwrap_or_default())
            && within(self.end_to_end, latency.end_to_end)
    }
}

/// Percentile of sorted values by nearest rank; `None` of no values.
pub fn percentile<T: Copy>(sorted: &[T], percent: f64) -> Option<T> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get(rank(sorted.len() as u64, percent).saturating_sub(1).min(last as u64) as usize).copied()
}

/// Nearest rank, from 1, of a percentile among `n` values.
fn rank(n: u64, percent: f64) -> u64 {
    // A little less than the product, so that 99 % of 100 is the 99th although 0.99 is not exact.
    ((percent / 100.0 * n as f64) - 1e-9).ceil().clamp(1.0, n.max(1) as f64) as u64
}

/// Bits of a value after the highest one that a histogram keeps.
const PRECISION: u32 = 7;

/// Durations in buckets at most 1/128 wide relative to their values: percentiles of any number of values in
/// bounded memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LatencyHistogram {
    counts: Vec<u64>,
    n: u64,
    sum: u128,
    max: u64,
}

impl LatencyHistogram {
    /// Adds a duration.
    #[inline]
    pub fn record(&mut self, value: Nanos) {
        let bucket = bucket_of(value.0);
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.n += 1;
        self.sum += u128::from(value.0);
        self.max = self.max.max(value.0);
    }

    /// Number of durations.
    pub fn len(&self) -> u64 {
        self.n
    }

    /// Whether the histogram has no durations.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// Mean; `None` without durations.
    pub fn mean(&self) -> Option<Nanos> {
        (self.n > 0).then(|| Nanos((self.sum / u128::from(self.n)) as u64))
    }

    /// Longest duration, exact.
    pub fn max(&self) -> Nanos {
        Nanos(self.max)
    }

    /// Percentile by nearest rank, to within a bucket; `None` of no durations.
    pub fn percentile(&self, percent: f64) -> Option<Nanos> {
        if self.n == 0 {
            return None;
        }
        let rank = rank(self.n, percent);
        let mut n_before = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            n_before += count;
            if n_before >= rank {
                return Some(Nanos(highest_of(bucket).min(self.max)));
            }
        }
        Some(Nanos(self.max))
    }

    /// Mean and usual percentiles.
    pub fn summary(&self) -> LatencySummary {
        let at = |percent| self.percentile(percent).unwrap_or_default().as_ms_f64();
        LatencySummary {
            n: self.n,
            mean_ms: self.mean().unwrap_or_default().as_ms_f64(),
            p50_ms: at(50.0),
            p90_ms: at(90.0),
            p95_ms: at(95.0),
            p99_ms: at(99.0),
            max_ms: self.max().as_ms_f64(),
        }
    }
}

/// Summary of durations in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// Number of durations.
    pub n: u64,
    /// Mean in milliseconds.
    pub mean_ms: f64,
    /// Median in milliseconds.
    pub p50_ms: f64,
    /// 90th percentile in milliseconds.
    pub p90_ms: f64,
    /// 95th percentile in milliseconds.
    pub p95_ms: f64,
    /// 99th percentile in milliseconds.
    pub p99_ms: f64,
    /// Longest in milliseconds.
    pub max_ms: f64,
}

/// Latencies of many requests, and the number of good ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LatencyStats {
    objective: Objective,
    /// Times to the first token.
    pub first_token: LatencyHistogram,
    /// Gaps between tokens of all answers.
    pub gap: LatencyHistogram,
    /// Mean times between tokens, one for each answer.
    pub mean_gap: LatencyHistogram,
    /// Times to the end of whole answers.
    pub end_to_end: LatencyHistogram,
    /// Number of requests that ended.
    pub n_requests: u64,
    /// Number of complete answers.
    pub n_whole: u64,
    /// Whole answers within the objective.
    pub n_good: u64,
}

impl LatencyStats {
    /// No latencies yet, to be judged by this objective.
    pub fn new(objective: Objective) -> Self {
        Self { objective, ..Self::default() }
    }

    /// Adds a request that ended.
    pub fn record(&mut self, latency: &RequestLatency) {
        self.n_requests += 1;
        latency.first_token.into_iter().for_each(|time| self.first_token.record(time));
        latency.mean_gap.into_iter().for_each(|gap| self.mean_gap.record(gap));
        if latency.is_whole {
            self.n_whole += 1;
            self.end_to_end.record(latency.end_to_end);
        }
        self.n_good += u64::from(self.objective.is_met_by(latency));
    }

    /// Requests a second that were good, over this time.
    pub fn goodput(&self, time: Nanos) -> f64 {
        if time.0 == 0 { 0.0 } else { self.n_good as f64 / time.as_secs_f64() }
    }
}

/// Index of the bucket of a value.
#[inline]
fn bucket_of(value: u64) -> usize {
    let n_bits = u64::BITS - value.leading_zeros();
    let shift = n_bits.saturating_sub(PRECISION + 1);
    ((u64::from(shift) << PRECISION) + (value >> shift)) as usize
}

/// The highest value of a bucket.
fn highest_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket >> PRECISION).saturating_sub(1);
    let mantissa = bucket - (shift << PRECISION);
    ((u128::from(mantissa + 1) << shift) - 1).min(u128::from(u64::MAX)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_at_most_the_highest_of_its_bucket() {
        for value in [0, 1, 127, 128, 129, 255, 256, 257, u64::MAX] {
            assert!(highest_of(bucket_of(value)) >= value && bucket_of(value) < 1 << 13, "{value}");
        }
    }
}
