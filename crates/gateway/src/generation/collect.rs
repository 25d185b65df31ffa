//! A whole answer at once, its memory reserved as it grows. Does not know how it is shown.

use std::mem::{size_of, size_of_val};

use throng_http::Phase;
use throng_http::memory::Reservation;
use tokio::sync::watch;

use super::answer_bound::AnswerBound;
use super::choice::{Choice, ChoiceEnd};
use super::output::Output;
use super::session::Session;
use crate::rejection::memory_full;
use crate::replica::TokenReport;
use crate::retry_after::retry_after_s;
use throng_api::ApiError;

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    /// One a prompt.
    pub prompts: Vec<PromptReport>,
    /// In order of their numbers.
    pub choices: Vec<Choice>,
    /// Output tokens of choices that are not shown.
    pub discarded_tokens: u64,
    /// About how many bytes it takes as JSON.
    pub json_bytes: usize,
    memory: Reservation,
    n_tokens: usize,
    n_text_bytes: usize,
    text_copies: usize,
    n_held: usize,
}

/// What is known of a prompt.
#[derive(Debug, Default)]
pub(crate) struct PromptReport {
    /// Its tokens that were found in the cache.
    pub cached_tokens: u32,
    /// Its tokens' log-probabilities but the first's, when asked for.
    pub logprobs: Vec<TokenReport>,
}

impl Answer {
    fn new(n_prompts: usize, n_choices: usize, text_copies: usize, memory: Reservation) -> Self {
        let (mut prompts, mut choices) = (Vec::new(), Vec::new());
        prompts.resize_with(n_prompts, PromptReport::default);
        choices.resize_with(n_choices, Choice::default);
        let n_held = memory.n_bytes() + n_choices * size_of::<Choice>();
        Self {
            prompts,
            choices,
            discarded_tokens: 0,
            json_bytes: 0,
            memory,
            n_tokens: 0,
            n_text_bytes: 0,
            text_copies,
            n_held,
        }
    }

    /// Keeps the `n` choices of each prompt whose tokens are the most likely on average, the best first: what OpenAI's reference says
    /// of `best_of` ("the one with the highest log probability per token").
    pub fn keep_best(&mut self, n: usize) {
        let n_of_prompt = self.choices.len() / self.prompts.len().max(1);
        if n_of_prompt <= n {
            return;
        }
        let mut choices = std::mem::take(&mut self.choices).into_iter();
        for _ in 0..self.prompts.len() {
            let mut of_prompt: Vec<Choice> = choices.by_ref().take(n_of_prompt).collect();
            of_prompt.sort_by(|a, b| b.mean_logprob().total_cmp(&a.mean_logprob()));
            let discarded = of_prompt.split_off(n);
            self.discarded_tokens += discarded.iter().map(|choice| choice.reports.len() as u64).sum::<u64>();
            self.choices.extend(of_prompt);
        }
    }

    /// Takes in what has happened; never [`Output::Failed`].
    fn add(&mut self, output: Output) -> Result<(), ApiError> {
        match output {
            Output::Prompt { prompt_idx, cached_tokens, logprobs } => {
                self.prompts[prompt_idx] = PromptReport { cached_tokens, logprobs };
            }
            Output::Token { choice_idx, text, report } => {
                self.n_tokens += 1;
                self.n_held +=
                    size_of::<TokenReport>() + size_of_val(report.top.as_slice()) + size_of::<usize>();
                self.count_text(&text);
                let choice = &mut self.choices[choice_idx];
                choice.reports.push(report);
                choice.offsets.push(choice.n_chars);
                choice.n_chars += text.chars().count();
                choice.text.push_str(&text);
            }
            Output::Finished { choice_idx, text, reason, stop, is_filtered, timing } => {
                self.count_text(&text);
                let choice = &mut self.choices[choice_idx];
                choice.text.push_str(&text);
                choice.end = Some(ChoiceEnd { reason, stop, is_filtered, timing });
            }
            Output::Failed(_) => {}
        }
        self.memory.cover(self.n_held).map_err(memory_full)
    }

    fn count_text(&mut self, text: &str) {
        self.n_text_bytes += text.len();
        self.n_held += text.len() * self.text_copies;
    }
}

/// Waits for the whole answer of a session with `n_prompts` prompts. `memory` holds what `bound` says of the prompts'
/// log-probabilities, and grows with the answer.
///
/// # Errors
/// 500 when it fails on the way, 503 when the server ends first or its memory is full, 400 when the answer becomes
/// larger than it may.
pub(crate) async fn collect(
    mut session: Session,
    n_prompts: usize,
    bound: &AnswerBound,
    memory: Reservation,
    mut phase: watch::Receiver<Phase>,
    request_id: &str,
) -> Result<Answer, ApiError> {
    let mut answer = Answer::new(n_prompts, session.n_choices(), bound.text_copies(), memory);
    loop {
        let output = tokio::select! {
            output = session.next() => output,
            _ = phase.wait_for(|phase| *phase == Phase::Cut) => {
                return Err(ApiError::shutting_down(retry_after_s()));
            }
        };
        match output {
            None => {
                answer.json_bytes = bound.json_bytes(answer.n_tokens, answer.n_text_bytes);
                return Ok(answer);
            }
            Some(Output::Failed(error)) => return Err(session.client_error(&error, request_id)),
            Some(output) => answer.add(output)?,
        }
        bound.check(answer.n_tokens, answer.n_text_bytes)?;
    }
}
