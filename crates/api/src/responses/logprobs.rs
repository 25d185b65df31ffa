//! Log-probabilities of a text's tokens.

use throng_core::fleet::replica::TokenReport;
use throng_core::request::TokenId;

use super::item::{Logprob, TopLogprob};
use crate::answer::Choice;
use crate::dialect::AnswerFacts;

/// JSON has no infinity: the log-probability of an impossible token is this number.
const MIN_LOGPROB: f32 = -9999.0;

/// The log-probabilities of tokens, by their texts.
pub(super) fn logprobs_of(reports: &[TokenReport], facts: &AnswerFacts) -> Vec<Logprob> {
    let text = |token: TokenId| {
        let bytes = facts.tokenizer.as_ref().and_then(|tokenizer| tokenizer.token_bytes(token));
        match bytes {
            Some(bytes) => (String::from_utf8_lossy(bytes).into_owned(), bytes.to_vec()),
            None => (format!("token_id:{token}"), Vec::new()),
        }
    };
    let spelled = |report: &TokenReport| {
        let (token, bytes) = text(report.chosen.token);
        let top = report.top.iter().map(|top| {
            let (token, bytes) = text(top.token);
            TopLogprob { token, bytes, logprob: top.logprob.max(MIN_LOGPROB) }
        });
        Logprob { token, bytes, logprob: report.chosen.logprob.max(MIN_LOGPROB), top_logprobs: top.collect() }
    };
    reports.iter().map(spelled).collect()
}

/// The reports of a choice's text, if they are requested: from the first token that added text to the last.
pub(super) fn of_text(choice: &Choice, is_wanted: bool) -> &[TokenReport] {
    if !is_wanted {
        return &[];
    }
    let n_chars = choice.content.chars().count();
    let count = |is_counted: &dyn Fn(usize) -> bool| {
        choice.offsets.iter().take_while(|offset| is_counted(**offset)).count()
    };
    // Offsets are those before a token: the last token at the beginning is the one that leaves it.
    let (n_before, n_until) =
        (count(&|offset| offset == 0).saturating_sub(1), count(&|offset| offset < n_chars));
    &choice.reports[n_before..n_until.max(n_before)]
}
