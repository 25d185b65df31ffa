//! Usage of a request as an upstream engine reports it, or an estimate without a report. Does not know
//! limits and the ledger.

use serde::Deserialize;
use serde_json::Value;

/// Maximum number of tokens that a template adds to a prompt: the model's own instructions and descriptions
/// of tools.
const MAX_ADDED_PROMPT_TOKENS: u64 = 4_096;
/// Maximum number of tokens of an image, a sound or a file in a prompt, whose bytes may be elsewhere.
const MAX_MEDIUM_TOKENS: u64 = 32_768;
/// Maximum number of tokens of any prompt.
const MAX_PROMPT_TOKENS: u64 = 1 << 24;
/// Maximum number of unshown tokens of an answer: marks of reasoning and calls, and the end token.
const MAX_MARK_TOKENS: u64 = 64;
/// Maximum number of hidden reasoning tokens of an answer.
const MAX_HIDDEN_TOKENS: u64 = 1 << 17;
/// Assumed bytes of text for a token.
const BYTES_PER_TOKEN: u64 = 4;

/// Token counts of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Number of prompt tokens that represent images.
    pub image_tokens: u64,
    /// Number of output tokens of all answers.
    pub completion_tokens: u64,
    /// Number of prompt tokens found in a prefix cache.
    pub cached_tokens: u64,
    /// Number of reasoning tokens among the output tokens.
    pub reasoning_tokens: u64,
}

/// Token counts reported by an engine; absent if not reported as a count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Value")]
pub struct ReportedUsage {
    /// Prompt tokens.
    pub prompt_tokens: Option<u64>,
    /// Number of prompt tokens that represent images.
    pub image_tokens: Option<u64>,
    /// Output tokens of all answers.
    pub completion_tokens: Option<u64>,
    /// Prompt tokens found in a prefix cache.
    pub cached_tokens: Option<u64>,
    /// Reasoning tokens among the output tokens, which may be hidden.
    pub reasoning_tokens: Option<u64>,
}

impl From<Value> for ReportedUsage {
    fn from(told: Value) -> Self {
        Self {
            prompt_tokens: count(&told["prompt_tokens"]),
            image_tokens: count(&told["prompt_tokens_details"]["image_tokens"]),
            completion_tokens: count(&told["completion_tokens"]),
            cached_tokens: count(&told["prompt_tokens_details"]["cached_tokens"]),
            reasoning_tokens: count(&told["completion_tokens_details"]["reasoning_tokens"]),
        }
    }
}

/// Parses a token count; some engines write it with a decimal point.
fn count(value: &Value) -> Option<u64> {
    let whole = |number: f64| number >= 0.0 && number <= MAX_PROMPT_TOKENS as f64 && number.fract() == 0.0;
    value.as_u64().or_else(|| value.as_f64().filter(|number| whole(*number)).map(|number| number as u64))
}

/// Bounds of a request's usage, and the estimate if its engine reports none.
#[derive(Debug, Clone, Copy, Default)]
pub struct UsageBounds {
    /// Estimated prompt tokens.
    pub assumed_prompt_tokens: u64,
    /// Bytes of the request: each token has at least one.
    pub n_request_bytes: u64,
    /// Number of images, sounds and files in the prompt.
    pub n_media: u64,
    /// Number of answers that the engine generates.
    pub n_sequences: u64,
    /// Output token limit of each answer, if the request has one.
    pub max_tokens: Option<u64>,
}

impl UsageBounds {
    fn most_prompt_tokens(&self) -> u64 {
        let of_media = self.n_media.saturating_mul(MAX_MEDIUM_TOKENS);
        let most = self.n_request_bytes.saturating_add(MAX_ADDED_PROMPT_TOKENS).saturating_add(of_media);
        most.min(MAX_PROMPT_TOKENS)
    }

    /// Maximum output tokens of an answer with this many bytes and this many reported reasoning tokens.
    fn most_completion_tokens(&self, n_answer_bytes: u64, reasoning_tokens: u64) -> u64 {
        let hidden = reasoning_tokens.min(self.n_sequences.saturating_mul(MAX_HIDDEN_TOKENS));
        let asked = self.max_tokens.map_or(u64::MAX, |most| most.saturating_mul(self.n_sequences));
        let most = n_answer_bytes.saturating_add(hidden).min(asked);
        most.saturating_add(self.n_sequences.saturating_mul(MAX_MARK_TOKENS))
    }
}

/// Estimated number of tokens in a message's texts.
pub fn estimated_tokens(message: &Value) -> u64 {
    n_text_bytes(message).div_ceil(BYTES_PER_TOKEN)
}

/// Total bytes of all texts that the model may have written.
fn n_text_bytes(value: &Value) -> u64 {
    match value {
        Value::String(text) => text.len() as u64,
        Value::Array(values) => values.iter().map(n_text_bytes).sum(),
        Value::Object(members) => {
            let written = members.iter().filter(|(key, _)| !matches!(key.as_str(), "role" | "id" | "type"));
            written.map(|(_, value)| n_text_bytes(value)).sum()
        }
        _ => 0,
    }
}

/// Counts the tokens of one request.
#[derive(Debug)]
pub struct UsageCount {
    bounds: UsageBounds,
    /// Latest report of the engine.
    reported: ReportedUsage,
    /// Bytes of the answer.
    n_answer_bytes: u64,
    /// Number of events with a part of an answer: each has at least one token, from most engines exactly
    /// one.
    n_parts: u64,
    /// Estimated output tokens, from events or texts.
    estimated_tokens: u64,
}

impl UsageCount {
    /// Starts counting when a request has reached an engine.
    pub fn new(bounds: UsageBounds) -> Self {
        let reported = ReportedUsage::default();
        Self { bounds, reported, n_answer_bytes: 0, n_parts: 0, estimated_tokens: 0 }
    }

    /// Counts an event with a part of an answer and at least `n_tokens` tokens.
    pub fn part(&mut self, n_tokens: u64) {
        self.n_parts += 1;
        self.estimated_tokens = self.estimated_tokens.saturating_add(n_tokens);
    }

    /// Adds `n` bytes of the answer.
    pub fn bytes(&mut self, n: usize) {
        self.n_answer_bytes = self.n_answer_bytes.saturating_add(n as u64);
    }

    /// Counts a whole answer with an estimate of its tokens.
    pub fn whole(&mut self, n_tokens: u64) {
        self.estimated_tokens = n_tokens;
    }

    /// Records a report of the engine.
    pub fn report(&mut self, usage: ReportedUsage) {
        self.reported = usage;
    }

    /// Number of events with a part of an answer so far.
    pub fn n_parts(&self) -> u64 {
        self.n_parts
    }

    /// Whether the report exceeds the maximum possible for this request and its answer.
    pub fn is_absurd(&self) -> bool {
        let (most_prompt, most_completion) = self.most_tokens();
        self.reported.prompt_tokens > Some(most_prompt)
            || self.reported.completion_tokens > Some(most_completion)
    }

    /// Maximum credible tokens of the prompt and of all answers.
    fn most_tokens(&self) -> (u64, u64) {
        let reasoning = self.reported.reasoning_tokens.unwrap_or(0);
        let completion = self.bounds.most_completion_tokens(self.n_answer_bytes, reasoning);
        (self.bounds.most_prompt_tokens(), completion)
    }

    /// Best known token counts. Impossible reports are corrected: more tokens than bytes, or no tokens
    /// despite text.
    pub fn usage(&self) -> Usage {
        let (most_prompt, most_completion) = self.most_tokens();
        let of_text = |told: Option<u64>, most: u64, estimated: u64| {
            told.filter(|told| *told <= most && (*told > 0 || estimated == 0)).unwrap_or(estimated)
        };
        let assumed = self.bounds.assumed_prompt_tokens;
        let prompt_tokens = of_text(self.reported.prompt_tokens, most_prompt, assumed);
        let completion_tokens =
            of_text(self.reported.completion_tokens, most_completion, self.estimated_tokens);
        Usage {
            prompt_tokens,
            image_tokens: self.reported.image_tokens.unwrap_or(0).min(prompt_tokens),
            completion_tokens,
            cached_tokens: self.reported.cached_tokens.unwrap_or(0).min(prompt_tokens),
            reasoning_tokens: self.reported.reasoning_tokens.unwrap_or(0).min(completion_tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A request of 1,000 bytes with two answers, of which 500 bytes with an estimated 20 tokens have
    /// arrived.
    fn usage(reported: Value, max_tokens: Option<u64>) -> (Usage, bool) {
        let bounds = UsageBounds {
            assumed_prompt_tokens: 200,
            n_request_bytes: 1_000,
            n_sequences: 2,
            max_tokens,
            ..UsageBounds::default()
        };
        let mut count = UsageCount::new(bounds);
        count.bytes(500);
        count.whole(20);
        count.report(reported.into());
        (count.usage(), count.is_absurd())
    }

    fn tokens(prompt_tokens: u64, completion_tokens: u64, cached_tokens: u64) -> Usage {
        Usage { prompt_tokens, completion_tokens, cached_tokens, ..Usage::default() }
    }

    #[test]
    fn what_the_request_and_its_answer_can_have_is_believed() {
        for (reported, expected) in [
            (json!({"prompt_tokens": 300, "completion_tokens": 40}), tokens(300, 40, 0)),
            (json!({"prompt_tokens": 300.0, "completion_tokens": 4.0e1}), tokens(300, 40, 0)),
            (
                json!({"prompt_tokens": 300, "completion_tokens": 40, "prompt_tokens_details": {"cached_tokens": 256}}),
                tokens(300, 40, 256),
            ),
            (
                json!({"prompt_tokens": 300, "completion_tokens": 40, "prompt_tokens_details": {"image_tokens": 64}}),
                Usage { image_tokens: 64, ..tokens(300, 40, 0) },
            ),
            (json!({"prompt_tokens": 5_096, "completion_tokens": 628}), tokens(5_096, 628, 0)),
            (
                json!({"prompt_tokens": 1, "completion_tokens": 9_000, "completion_tokens_details": {"reasoning_tokens": 8_900}}),
                Usage { reasoning_tokens: 8_900, ..tokens(1, 9_000, 0) },
            ),
        ] {
            assert_eq!(usage(reported.clone(), None), (expected, false), "{reported}");
        }
    }

    #[test]
    fn what_cannot_be_is_estimated() {
        let most = 1_u64 << 53;
        for (reported, expected) in [
            (json!({"prompt_tokens": most, "completion_tokens": most}), tokens(200, 20, 0)),
            (json!({"prompt_tokens": u64::MAX, "completion_tokens": 7}), tokens(200, 7, 0)),
            (json!({"prompt_tokens": 5_097, "completion_tokens": 629}), tokens(200, 20, 0)),
            (
                json!({"prompt_tokens": 9, "completion_tokens": most, "completion_tokens_details": {"reasoning_tokens": most}}),
                Usage { reasoning_tokens: 20, ..tokens(9, 20, 0) },
            ),
            (
                json!({"prompt_tokens": 9, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": most}}),
                tokens(9, 7, 9),
            ),
            (
                json!({"prompt_tokens": 9, "completion_tokens": 7, "prompt_tokens_details": {"image_tokens": most}}),
                Usage { image_tokens: 9, ..tokens(9, 7, 0) },
            ),
        ] {
            let is_absurd = expected.prompt_tokens == 200 || expected.completion_tokens == 20;
            assert_eq!(usage(reported.clone(), None), (expected, is_absurd), "{reported}");
        }
        let asked = json!({"prompt_tokens": 9, "completion_tokens": 400});
        assert_eq!(usage(asked.clone(), Some(136)), (tokens(9, 400, 0), false));
        assert_eq!(usage(asked, Some(135)), (tokens(9, 20, 0), true), "more than was asked for");
    }

    #[test]
    fn what_is_not_said_is_estimated() {
        for reported in [
            json!(null),
            json!({}),
            json!([]),
            json!("12"),
            json!({"prompt_tokens": 0, "completion_tokens": 0}),
            json!({"prompt_tokens": -1, "completion_tokens": "7"}),
            json!({"prompt_tokens": 1.5, "completion_tokens": 1e300}),
            json!({"prompt_tokens": null, "completion_tokens": {}}),
        ] {
            assert_eq!(usage(reported.clone(), None), (tokens(200, 20, 0), false), "{reported}");
        }
        let calls = json!({"role": "assistant", "content": null, "reasoning": "abcd", "tool_calls": [
            {"id": "call_123456789", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        ]});
        assert_eq!(estimated_tokens(&calls), 2);
    }
}
