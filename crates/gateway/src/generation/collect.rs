//! A whole answer at once. Refuses to know how it is shown.

use throng_core::request::{FinishReason, TokenId};
use throng_core::timeline::Timeline;
use throng_engine::TokenReport;
use tokio::sync::watch;

use super::admit::{failure, retry_after_s};
use super::session::{Output, Session};
use crate::openai::ApiError;
use crate::openai::response::Finish;
use crate::server::Phase;

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    /// One a prompt.
    pub prompts: Vec<PromptReport>,
    /// In order of their numbers.
    pub choices: Vec<Choice>,
}

/// What is known of a prompt.
#[derive(Debug, Default)]
pub(crate) struct PromptReport {
    /// Its tokens that were found in the cache.
    pub cached_tokens: u32,
    /// Its tokens' log-probabilities but the first's, when asked for.
    pub logprobs: Vec<TokenReport>,
}

/// A whole choice.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    /// What was said.
    pub text: String,
    /// Its tokens.
    pub reports: Vec<TokenReport>,
    /// For each token, how many characters of `text` come before it.
    pub offsets: Vec<usize>,
    n_chars: usize,
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
    /// When what happened.
    pub timeline: Timeline,
}

impl Choice {
    /// Its tokens alone.
    pub fn token_ids(&self) -> Vec<TokenId> {
        self.reports.iter().map(|report| report.chosen.token).collect()
    }

    /// Why it ended. One whose end is not known was aborted.
    pub fn finish(&self) -> Finish<'_> {
        match &self.end {
            Some(end) => Finish::new(end.reason, end.stop.as_deref()),
            None => Finish::new(FinishReason::Abort, None),
        }
    }
}

/// Waits for the whole answer of a session with `n_prompts` prompts.
///
/// # Errors
/// 500 when it fails on the way, 503 when the server ends first.
pub(crate) async fn collect(
    mut session: Session,
    n_prompts: usize,
    mut phase: watch::Receiver<Phase>,
    request_id: &str,
) -> Result<Answer, ApiError> {
    let mut answer = Answer { prompts: Vec::new(), choices: Vec::new() };
    answer.prompts.resize_with(n_prompts, PromptReport::default);
    answer.choices.resize_with(session.n_choices(), Choice::default);
    loop {
        let output = tokio::select! {
            output = session.next() => output,
            _ = phase.wait_for(|phase| *phase == Phase::Cut) => {
                return Err(ApiError::shutting_down(retry_after_s()));
            }
        };
        match output {
            None => return Ok(answer),
            Some(Output::Failed(error)) => return Err(failure(&error, request_id)),
            Some(Output::Prompt { prompt_idx, cached_tokens, logprobs }) => {
                answer.prompts[prompt_idx] = PromptReport { cached_tokens, logprobs };
            }
            Some(Output::Token { choice_idx, text, report }) => {
                let choice = &mut answer.choices[choice_idx];
                choice.reports.push(report);
                choice.offsets.push(choice.n_chars);
                choice.n_chars += text.chars().count();
                choice.text.push_str(&text);
            }
            Some(Output::Finished { choice_idx, text, reason, stop, timeline }) => {
                let choice = &mut answer.choices[choice_idx];
                choice.text.push_str(&text);
                choice.end = Some(ChoiceEnd { reason, stop, timeline });
            }
        }
    }
}
