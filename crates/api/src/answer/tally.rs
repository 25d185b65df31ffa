//! The usage of a request: token counts so far, and times of the first and last tokens.

use std::time::Duration;

use super::{AnswerEvent, ServedEvent};

/// Token counts of a whole request, as reported by its engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenCounts {
    /// Tokens of the prompts.
    pub prompt: u64,
    /// Prompt tokens that stand for images.
    pub images: u64,
    /// Prompt tokens found in the prefix cache.
    pub cached: u64,
    /// Output tokens of all choices.
    pub output: u64,
    /// Reasoning tokens, which are part of the output tokens.
    pub reasoning: u64,
}

/// Token counts of a request so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tokens of the prompts.
    pub prompt: u64,
    /// Prompt tokens that stand for images.
    pub images: u64,
    /// Prompt tokens found in the prefix cache.
    pub cached: u64,
    /// Output tokens of all choices, including those that are not shown.
    pub output: u64,
    /// Reasoning tokens, which are part of the output tokens.
    pub reasoning: u64,
    /// Times of first step, first token and last token.
    pub moments: Moments,
}

impl Tally {
    /// Creates the tally of a request with this number of prompt tokens.
    pub fn new(prompt: u64) -> Self {
        Self { prompt, ..Self::default() }
    }

    /// Sets the number of prompt tokens that stand for images.
    pub fn with_images(self, images: u64) -> Self {
        Self { images, ..self }
    }

    /// Counts an event.
    pub fn add(&mut self, event: &AnswerEvent) {
        match event {
            AnswerEvent::Prompt { cached_tokens, .. } => self.cached += u64::from(*cached_tokens),
            AnswerEvent::Token { is_reasoning, .. } => {
                self.output += 1;
                self.reasoning += u64::from(*is_reasoning);
            }
            AnswerEvent::Finished { end, .. } | AnswerEvent::Served(ServedEvent::TurnEnded { end, .. }) => {
                let timing = &end.timing;
                self.moments.add(timing.first_step, timing.first_token, timing.last_token);
            }
            AnswerEvent::Usage(counts) => {
                let TokenCounts { prompt, images, cached, output, reasoning } = *counts;
                *self = Self { prompt, images, cached, output, reasoning, ..*self };
            }
            AnswerEvent::Served(ServedEvent::TurnBegan { n_prompt_tokens, n_image_tokens }) => {
                self.prompt += n_prompt_tokens;
                self.images += n_image_tokens;
            }
            AnswerEvent::Served(ServedEvent::CallEnded { .. }) | AnswerEvent::Failed(_) => {}
        }
    }
}

/// Times over all choices, since the request was submitted; `None` for what has not happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moments {
    pub(crate) first_step: Option<Duration>,
    pub(crate) first_token: Option<Duration>,
    pub(crate) last_token: Option<Duration>,
    pub(crate) n_first_tokens: u64,
}

impl Moments {
    /// Merges the times of a choice.
    pub fn add(
        &mut self,
        first_step: Option<Duration>,
        first_token: Option<Duration>,
        last_token: Option<Duration>,
    ) {
        self.first_step = self.first_step.into_iter().chain(first_step).min();
        self.first_token = self.first_token.into_iter().chain(first_token).min();
        self.last_token = self.last_token.max(last_token);
        self.n_first_tokens += u64::from(first_token.is_some());
    }
}
