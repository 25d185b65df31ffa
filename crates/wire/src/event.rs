//! Events of a generation, from a worker to a gateway. Does not know text.

use serde::{Deserialize, Serialize};
use throng_core::fleet::replica::{Timing, TokenReport};
use throng_core::request::FinishReason;

use crate::WireError;

/// A line of the answer to a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the fields are those of the gateway's events")]
pub enum Event {
    /// The request was admitted. The first line, unless the request was refused.
    Accepted,
    /// The prompt has been computed.
    Prompt {
        #[serde(default)]
        cached_tokens: u32,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        logprobs: Vec<TokenReport>,
    },
    /// A new output token.
    Token {
        index: u32,
        #[serde(flatten)]
        report: TokenReport,
    },
    /// A continuation ended.
    Finished { index: u32, reason: FinishReason, timing: Timing },
    /// The request failed or was refused.
    Failed { error: WireError },
    /// An event of a newer worker, which is ignored.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use throng_core::scheduling::batch::TokenLogprob;

    use super::*;

    #[test]
    fn what_a_newer_worker_adds_is_passed_over() {
        let read = |text| serde_json::from_str::<Event>(text).expect("an event");
        assert_eq!(read(r#"{"event": "hologram", "x": [1]}"#), Event::Unknown);
        let token = read(r#"{"event": "token", "index": 1, "token": [5, 0, 0], "color": "red"}"#);
        let chosen = TokenLogprob { token: 5, logprob: 0.0, rank: 0 };
        assert_eq!(token, Event::Token { index: 1, report: TokenReport { chosen, top: vec![] } });
        let bored = r#"{"event": "finished", "index": 0, "reason": {"as": "bored"}, "timing": {"new": 1}}"#;
        let timing = Timing::default();
        assert_eq!(read(bored), Event::Finished { index: 0, reason: FinishReason::Error, timing });
    }
}
