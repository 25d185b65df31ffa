//! Chat completions, whole and in chunks. Does not know templates.

use super::{Asked, Tally};
use crate::generation::{Answer, Events, FrameWriter, Frames, Output, StreamFormat};
use crate::openai::ApiError;
use crate::openai::chat_response::{ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion};
use crate::openai::logprobs::{ChatLogprobs, PromptLogprobs};
use crate::openai::response::Finish;
use crate::replica::TokenReport;

/// The body of a whole chat completion.
///
/// # Errors
/// When it is too large for `out`.
pub(crate) fn chat_completion(asked: &Asked, answer: &Answer, out: FrameWriter) -> Result<Frames, ApiError> {
    let bytes_of = |token| asked.bytes_of(token);
    let spelling = asked.spelling(&bytes_of);
    let prompt = answer.prompts.first();
    let mut tally = Tally::new(asked);
    tally.cached = prompt.map_or(0, |prompt| u64::from(prompt.cached_tokens));
    let choices = answer.choices.iter().enumerate().map(|(index, choice)| {
        tally.output += choice.reports.len() as u64;
        let logprobs = asked.logprobs.then_some(ChatLogprobs { reports: &choice.reports, spelling });
        let token_ids = asked.token_ids.then(|| choice.token_ids());
        ChatChoice::new(index, &choice.text, choice.finish(), logprobs, token_ids)
    });
    let choices = choices.collect();
    let prompt_logprobs = prompt
        .filter(|_| asked.prompt_logprobs)
        .map(|prompt| PromptLogprobs { reports: &prompt.logprobs, spelling });
    let prompt_ids = if asked.token_ids { asked.prompts.first().map(|prompt| &**prompt) } else { None };
    out.json(&ChatCompletion::new(&asked.envelope(), choices, tally.usage(), prompt_logprobs, prompt_ids))
}

/// The chunks of a streamed chat completion.
#[derive(Debug)]
pub(crate) struct ChatFormat {
    asked: Asked,
    tally: Tally,
    /// Choices whose first chunk has been sent.
    n_begun: usize,
}

impl ChatFormat {
    /// For the answer to what was asked.
    pub fn new(asked: Asked) -> Self {
        let tally = Tally::new(&asked);
        Self { asked, tally, n_begun: 0 }
    }

    fn push<'a>(&'a self, choice: ChatChunkChoice<'a>, events: &mut Events) {
        events.push(&ChatChunk::new(&self.asked.envelope(), choice, self.tally.of_chunk(&self.asked)));
    }

    fn push_token(&mut self, index: usize, text: &str, report: &TokenReport, events: &mut Events) {
        self.tally.output += 1;
        let asked = &self.asked;
        if text.is_empty() && !asked.logprobs && !asked.token_ids {
            return;
        }
        let bytes_of = |token| asked.bytes_of(token);
        let reports = std::slice::from_ref(report);
        let logprobs = asked.logprobs.then(|| ChatLogprobs { reports, spelling: asked.spelling(&bytes_of) });
        let token_ids = [report.chosen.token];
        let token_ids = asked.token_ids.then_some(token_ids.as_slice());
        self.push(ChatChunkChoice::new(index, Some(text), None, logprobs, token_ids), events);
    }
}

impl StreamFormat for ChatFormat {
    fn more(&mut self, events: &mut Events) -> bool {
        let index = self.n_begun;
        if index == self.asked.n {
            return false;
        }
        self.n_begun += 1;
        let choice = ChatChunkChoice::first(index);
        let mut chunk = ChatChunk::new(&self.asked.envelope(), choice, self.tally.of_chunk(&self.asked));
        if self.asked.token_ids {
            chunk = chunk.with_prompt_token_ids(self.asked.prompt_of(index));
        }
        events.push(&chunk);
        true
    }

    fn output(&mut self, output: Output, events: &mut Events) {
        match output {
            Output::Prompt { cached_tokens, .. } => self.tally.cached += u64::from(cached_tokens),
            Output::Token { choice_idx, text, report } => self.push_token(choice_idx, &text, &report, events),
            Output::Finished { choice_idx, text, reason, stop, .. } => {
                let content = (!text.is_empty()).then_some(text.as_str());
                let finish = Some(Finish::new(reason, stop.as_deref()));
                self.push(ChatChunkChoice::new(choice_idx, content, finish, None, None), events);
            }
            Output::Failed(_) => {}
        }
    }

    fn end(&mut self, events: &mut Events) {
        if self.asked.options.include_usage {
            events.push(&ChatChunk::of_usage(&self.asked.envelope(), self.tally.usage()));
        }
        events.push_done();
    }
}
