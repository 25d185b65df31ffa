//! What a worker reports while it generates. Does not know text.

use serde::{Deserialize, Serialize};
use throng_core::batch::TokenLogprob;
use throng_core::request;

use crate::{F32, WireError};

/// A line of the answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the fields are those of the gateway's events")]
pub enum Event {
    /// The request was taken in: the first line unless it was refused.
    Accepted,
    /// The prompt is computed.
    Prompt {
        #[serde(default)]
        cached_tokens: u32,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        logprobs: Vec<Report>,
    },
    /// A new output token.
    Token {
        index: u32,
        #[serde(flatten)]
        report: Report,
    },
    /// A continuation ended.
    Finished { index: u32, reason: FinishReason, timing: Timing },
    /// The request ended, or was not taken in.
    Failed { error: WireError },
    /// What a newer worker reports: to be passed over.
    #[serde(other)]
    Unknown,
}

/// A token with what is reported beside it: its id, the bits of its log-probability and its rank.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The token.
    pub token: (u32, F32, u32),
    /// The most likely tokens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top: Vec<(u32, F32, u32)>,
}

impl Report {
    /// Of a token and the most likely ones.
    pub fn new(chosen: TokenLogprob, top: &[TokenLogprob]) -> Self {
        let plain = |one: &TokenLogprob| (one.token, one.logprob.into(), one.rank);
        Self { token: plain(&chosen), top: top.iter().map(plain).collect() }
    }

    /// The token and the most likely ones.
    pub fn parts(self) -> (TokenLogprob, Vec<TokenLogprob>) {
        let full =
            |(token, logprob, rank): (u32, F32, u32)| TokenLogprob { token, logprob: logprob.into(), rank };
        (full(self.token), self.top.into_iter().map(full).collect())
    }
}

/// Why a continuation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "as", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the variants are those of the core's reasons")]
pub enum FinishReason {
    Stop {
        token: Option<u32>,
    },
    Length,
    Abort,
    #[serde(other)]
    Error,
}

impl From<request::FinishReason> for FinishReason {
    fn from(reason: request::FinishReason) -> Self {
        match reason {
            request::FinishReason::Stop(token) => Self::Stop { token },
            request::FinishReason::Length => Self::Length,
            request::FinishReason::Abort => Self::Abort,
            request::FinishReason::Error => Self::Error,
        }
    }
}

impl From<FinishReason> for request::FinishReason {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Stop { token } => Self::Stop(token),
            FinishReason::Length => Self::Length,
            FinishReason::Abort => Self::Abort,
            FinishReason::Error => Self::Error,
        }
    }
}

/// When what happened to a continuation, in nanoseconds since its request arrived at the worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names are those of the gateway's times")]
pub struct Timing {
    pub first_step: Option<u64>,
    pub first_token: Option<u64>,
    pub last_token: Option<u64>,
    pub end: u64,
    pub n_output: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, LineBuffer, line};

    fn report(logprob: f32) -> Report {
        let one = |token| TokenLogprob { token, logprob, rank: u32::MAX };
        Report::new(one(0), &[one(1), one(u32::MAX)])
    }

    #[test]
    fn all_events_cross_as_lines() {
        let timing = Timing { first_step: Some(1), end: u64::MAX, n_output: 3, ..Timing::default() };
        let error = WireError { kind: ErrorKind::Stopped, retryable: true, message: "a \"line\"\n".into() };
        let mut events = vec![Event::Accepted, Event::Failed { error }];
        for logprob in [0.0, -0.0, f32::NAN, f32::NEG_INFINITY, f32::MIN_POSITIVE, -1.25] {
            events
                .push(Event::Prompt { cached_tokens: 5, logprobs: vec![report(logprob), Report::default()] });
            events.push(Event::Token { index: 2, report: report(logprob) });
        }
        for reason in [
            request::FinishReason::Stop(None),
            request::FinishReason::Stop(Some(7)),
            request::FinishReason::Length,
            request::FinishReason::Abort,
            request::FinishReason::Error,
        ] {
            assert_eq!(request::FinishReason::from(FinishReason::from(reason)), reason);
            events.push(Event::Finished { index: 0, reason: reason.into(), timing });
        }
        let mut buffer = LineBuffer::default();
        for event in events {
            buffer.push(&line(&event).expect("short")).expect("short");
            let back: Event = serde_json::from_slice(buffer.next_line().expect("a line")).expect("an event");
            assert_eq!(back, event);
            assert!(buffer.next_line().is_none() && !buffer.is_inside_line());
        }
        let (chosen, top) = report(f32::NAN).parts();
        assert!(chosen.logprob.is_nan() && top[1].token == u32::MAX);
    }

    #[test]
    fn what_a_newer_worker_adds_is_passed_over() {
        let read = |text| serde_json::from_str::<Event>(text).expect("an event");
        assert_eq!(read(r#"{"event": "hologram", "x": [1]}"#), Event::Unknown);
        let token = read(r#"{"event": "token", "index": 1, "token": [5, 0, 0], "color": "red"}"#);
        assert_eq!(
            token,
            Event::Token { index: 1, report: Report { token: (5, F32::default(), 0), top: vec![] } }
        );
    }
}
