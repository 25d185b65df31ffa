//! What a foreign engine says that a request has used, or what is counted where it says nothing. Does not know limits and the ledger,
//! but for their charge.

use serde::Deserialize;
use throng_store::Outcome;

use crate::limits::Charge;

/// Tokens as an engine reports them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Reported")]
pub(super) struct Usage {
    /// Of the prompt.
    pub prompt_tokens: u64,
    /// Of all answers.
    pub completion_tokens: u64,
    /// Of the prompt, those found in a cache.
    pub cached_tokens: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Reported {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<Details>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Details {
    cached_tokens: Option<u64>,
}

impl From<Reported> for Usage {
    fn from(reported: Reported) -> Self {
        let prompt_tokens = reported.prompt_tokens.unwrap_or(0);
        let cached = reported.prompt_tokens_details.and_then(|details| details.cached_tokens);
        Self {
            prompt_tokens,
            completion_tokens: reported.completion_tokens.unwrap_or(0),
            cached_tokens: cached.unwrap_or(0).min(prompt_tokens),
        }
    }
}

/// Counts one request. Dropping it counts what is known then.
#[derive(Debug)]
pub(super) struct UsageCount {
    charge: Charge,
    /// As the engine reported last.
    reported: Option<Usage>,
    /// By the bytes of the prompt.
    assumed_prompt_tokens: u64,
    /// Events with a part of an answer: each has a token at least, and in most engines one.
    n_parts: u64,
    outcome: Outcome,
    is_settled: bool,
}

impl UsageCount {
    /// A request has reached an engine.
    pub fn new(mut charge: Charge, assumed_prompt_tokens: u64) -> Self {
        charge.begin(0);
        let outcome = Outcome::Abort;
        Self { charge, reported: None, assumed_prompt_tokens, n_parts: 0, outcome, is_settled: false }
    }

    /// A part of an answer came.
    pub fn part(&mut self) {
        self.n_parts += 1;
        self.charge.token();
    }

    /// The engine said what was used.
    pub fn report(&mut self, usage: Usage) {
        self.reported = Some(usage);
    }

    /// How the request ended.
    pub fn end(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    /// How it ended.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// What was used, as far as is known.
    pub fn usage(&self) -> Usage {
        let assumed = Usage {
            prompt_tokens: self.assumed_prompt_tokens,
            completion_tokens: self.n_parts,
            cached_tokens: 0,
        };
        self.reported.unwrap_or(assumed)
    }

    /// Settles the charge.
    fn settle(&mut self) {
        if std::mem::replace(&mut self.is_settled, true) {
            return;
        }
        let Usage { prompt_tokens, completion_tokens, cached_tokens } = self.usage();
        self.charge.begin(prompt_tokens);
        self.charge.prompt(prompt_tokens, cached_tokens);
        self.charge.answer_ended(completion_tokens, self.n_parts);
        self.charge.end(self.outcome);
    }
}

impl Drop for UsageCount {
    fn drop(&mut self) {
        self.settle();
    }
}
