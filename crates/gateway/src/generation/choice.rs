//! A whole choice of an answer. Does not know how it came or how it is shown.

use throng_core::request::{FinishReason, TokenId};

use crate::replica::{Timing, TokenReport};
use throng_api::openai::response::Finish;

/// A whole choice.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    /// What was said.
    pub text: String,
    /// Its tokens.
    pub reports: Vec<TokenReport>,
    /// For each token, how many characters of `text` come before it.
    pub offsets: Vec<usize>,
    /// Characters of `text`.
    pub n_chars: usize,
    /// Why it ended.
    pub end: Option<ChoiceEnd>,
}

/// How a choice ended.
#[derive(Debug)]
pub(crate) struct ChoiceEnd {
    /// Why.
    pub reason: FinishReason,
    /// The stop string that ended it.
    pub stop: Option<String>,
    /// It ended before a text that must not be sent.
    pub is_filtered: bool,
    /// When what happened.
    pub timing: Timing,
}

impl Choice {
    /// Its tokens alone.
    pub fn token_ids(&self) -> Vec<TokenId> {
        self.reports.iter().map(|report| report.chosen.token).collect()
    }

    /// The mean of its tokens' log-probabilities; 0 without tokens.
    pub fn mean_logprob(&self) -> f64 {
        let sum: f64 = self.reports.iter().map(|report| f64::from(report.chosen.logprob)).sum();
        sum / self.reports.len().max(1) as f64
    }

    /// Why it ended. One whose end is not known was aborted.
    pub fn finish(&self) -> Finish<'_> {
        match &self.end {
            Some(end) if end.is_filtered => Finish::filtered(),
            Some(end) => Finish::new(end.reason, end.stop.as_deref()),
            None => Finish::new(FinishReason::Abort, None),
        }
    }
}
