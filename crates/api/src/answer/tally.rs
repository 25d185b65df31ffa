//! The usage of a request: token counts so far, and times of the first and last tokens.

use std::time::Duration;

use throng_core::request::CacheMark;
use throng_core::scheduling::batch::BLOCK_TOKENS;

use super::{AnswerEvent, ServedEvent};
use crate::spec::KEEP_SHORT_S;

/// Token counts of a whole request, as reported by its engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenCounts {
    /// Number of tokens of the prompts.
    pub prompt: u64,
    /// Number of prompt tokens that represent images.
    pub images: u64,
    /// Number of prompt tokens found in the prefix cache.
    pub cached: u64,
    /// Number of output tokens of all choices.
    pub output: u64,
    /// Number of reasoning tokens, which are part of the output tokens.
    pub reasoning: u64,
}

/// Prompt tokens that were computed and are kept at the client's wish.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeptTokens {
    /// Tokens kept for minutes.
    pub short: u64,
    /// Tokens kept for longer.
    pub long: u64,
}

impl KeptTokens {
    /// Tokens of a prompt's whole blocks that marks cover and that were not found in the cache.
    pub fn of(marks: &[CacheMark], n_prompt: usize, n_cached: u32) -> Self {
        let (mut kept, mut counted) = (Self::default(), u64::from(n_cached));
        let longest = marks.iter().filter(|mark| mark.keep_s > KEEP_SHORT_S);
        let ends = |mark: &CacheMark| {
            let n_tokens = n_prompt.min(mark.n_tokens as usize);
            (n_tokens / BLOCK_TOKENS * BLOCK_TOKENS) as u64
        };
        let [long, all] =
            [longest.map(ends).max(), marks.iter().map(ends).max()].map(Option::unwrap_or_default);
        kept.long = long.saturating_sub(counted);
        counted = counted.max(long);
        kept.short = all.saturating_sub(counted);
        kept
    }

    /// All of them.
    pub fn n_all(&self) -> u64 {
        self.short + self.long
    }
}

/// Token counts of a request so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of tokens of the prompts.
    pub prompt: u64,
    /// Number of prompt tokens that represent images.
    pub images: u64,
    /// Prompt tokens found in the prefix cache.
    pub cached: u64,
    /// Prompt tokens that were computed and are kept.
    pub kept: KeptTokens,
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

    /// Sets the number of prompt tokens that represent images.
    pub fn with_images(self, images: u64) -> Self {
        Self { images, ..self }
    }

    /// Counts an event.
    pub fn add(&mut self, event: &AnswerEvent) {
        match event {
            AnswerEvent::Prompt { cached_tokens, kept, .. } => {
                self.cached += u64::from(*cached_tokens);
                self.kept.short += kept.short;
                self.kept.long += kept.long;
            }
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

/// Times over all choices, since the request was submitted; `None` for events that have not happened.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_tokens_are_those_of_whole_blocks_that_were_computed() {
        let mark = |n_tokens, keep_s| CacheMark { n_tokens, keep_s };
        let (hour, minutes) = (mark(50, 3_600), mark(CacheMark::WHOLE, 300));
        for (marks, n_cached, short, long) in [
            (&[][..], 0, 0, 0),
            (&[minutes], 0, 96, 0),
            (&[minutes], 32, 64, 0),
            (&[minutes], 100, 0, 0),
            (&[hour], 0, 0, 48),
            (&[hour, minutes], 0, 48, 48),
            (&[hour, minutes], 32, 48, 16),
            (&[minutes, hour], 64, 32, 0),
        ] {
            assert_eq!(KeptTokens::of(marks, 100, n_cached), KeptTokens { short, long }, "{marks:?}");
        }
    }
}
