//! Times of a sequence's events, and the durations between them. Does not know a clock.

pub mod latency;
pub mod request_trace;

use std::time::Duration;

use crate::time::{Nanos, Timestamp};

/// Times of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeline {
    /// Time at which the request was submitted.
    pub arrived: Timestamp,
    /// Time of its first share of a step.
    pub first_scheduled: Option<Timestamp>,
    /// Time at which its first output token was chosen.
    pub first_token: Option<Timestamp>,
    /// Time at which its newest output token was chosen.
    pub last_token: Option<Timestamp>,
    /// Time of its end.
    pub finished: Option<Timestamp>,
    /// Number of times that it lost its blocks and was computed again.
    pub n_preemptions: u32,
    /// Number of prompt tokens that were found in the cache when it was first scheduled, those in a store
    /// included.
    pub cached_tokens: u32,
    /// Number of tokens whose keys and values were brought back from a store.
    pub restored_tokens: u32,
    /// Number of tokens whose keys and values came from another engine.
    pub pulled_tokens: u32,
    /// Time for which it waited for them.
    pub restoring: Nanos,
    /// Number of output tokens so far.
    pub output_tokens: u32,
}

impl Timeline {
    /// Creates the timeline of a sequence that arrives at `arrived`.
    pub fn new(arrived: Timestamp) -> Self {
        Self {
            arrived,
            first_scheduled: None,
            first_token: None,
            last_token: None,
            finished: None,
            n_preemptions: 0,
            cached_tokens: 0,
            restored_tokens: 0,
            pulled_tokens: 0,
            restoring: Nanos(0),
            output_tokens: 0,
        }
    }

    /// Notes one more output token.
    pub fn note_token(&mut self, now: Timestamp) {
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
        self.output_tokens += 1;
    }

    /// Time from arrival to the first share of a step.
    pub fn queued(&self) -> Option<Nanos> {
        Some(self.first_scheduled?.since(self.arrived))
    }

    /// Time from the first share of a step to the first token.
    pub fn prefill(&self) -> Option<Nanos> {
        Some(self.first_token?.since(self.first_scheduled?))
    }

    /// Time from the first token to the last.
    pub fn decode(&self) -> Option<Nanos> {
        Some(self.last_token?.since(self.first_token?))
    }

    /// Time from arrival to the first token (TTFT).
    pub fn time_to_first_token(&self) -> Option<Nanos> {
        Some(self.first_token?.since(self.arrived))
    }

    /// The mean time between two tokens (ITL); `None` before the second token.
    pub fn inter_token_latency(&self) -> Option<Nanos> {
        let decode = Duration::from_nanos(self.decode()?.0);
        latency::mean_gap(decode, self.output_tokens).map(Nanos::from)
    }

    /// Time from arrival to the end.
    pub fn end_to_end(&self) -> Option<Nanos> {
        Some(self.finished?.since(self.arrived))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_follow_from_stamps() {
        let at = |ms| Timestamp::default() + Nanos::from_ms(ms);
        let mut timeline = Timeline::new(at(10));
        assert_eq!(timeline.time_to_first_token(), None);
        timeline.first_scheduled = Some(at(15));
        for ms in [40, 60, 100] {
            timeline.note_token(at(ms));
        }
        timeline.finished = Some(at(101));
        assert_eq!(timeline.queued(), Some(Nanos::from_ms(5)));
        assert_eq!(timeline.prefill(), Some(Nanos::from_ms(25)));
        assert_eq!(timeline.time_to_first_token(), Some(Nanos::from_ms(30)));
        assert_eq!(timeline.inter_token_latency(), Some(Nanos::from_ms(30)));
        assert_eq!(timeline.end_to_end(), Some(Nanos::from_ms(91)));
    }
}
