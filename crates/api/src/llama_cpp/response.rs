//! The objects of answers to `POST /infill`.

use serde::Serialize;

use crate::answer::Timings;

/// A piece of an answer, or a whole one.
#[derive(Debug, Serialize)]
pub(super) struct InfillAnswer<'a> {
    pub index: u32,
    pub content: &'a str,
    pub tokens: [u32; 0],
    pub stop: bool,
    pub tokens_predicted: u64,
    pub tokens_evaluated: u64,
    #[serde(flatten)]
    pub end: Option<End<'a>>,
}

/// The end of an answer.
#[derive(Debug, Serialize)]
pub(super) struct End<'a> {
    pub model: &'a str,
    pub truncated: bool,
    /// Reason of the end: `eos`, `limit` or `word`.
    pub stop_type: &'static str,
    pub stopping_word: &'a str,
    pub tokens_cached: u64,
    pub timings: Timings,
}
