//! Text completions, whole and in chunks. Refuses to know tokenizing.

use throng_core::request::TokenId;
use throng_engine::TokenReport;

use super::{Asked, Tally, to_json};
use crate::generation::{Answer, Events, Output, StreamFormat};
use crate::openai::completion_response::{
    AskedOfChoice, Completion, CompletionChoice, CompletionChunk, CompletionChunkChoice,
};
use crate::openai::logprobs::{CompletionLogprobs, CompletionToken, PromptLogprobs};
use crate::openai::response::Finish;

/// What an answer repeats of its prompts.
#[derive(Debug, Clone, Default)]
pub(crate) struct EchoedPrompt {
    /// The prompts' texts; `None`: the answer does not begin with its prompt.
    pub texts: Option<Vec<String>>,
    /// Whether `prompt_logprobs` are shown under that name.
    pub shows_logprobs: bool,
}

impl EchoedPrompt {
    fn text(&self, prompt_idx: usize) -> Option<&str> {
        self.texts.as_ref()?.get(prompt_idx).map(String::as_str)
    }
}

/// The body of a whole text completion.
pub(crate) fn text_completion(asked: &Asked, echo: &EchoedPrompt, answer: &Answer) -> Vec<u8> {
    let bytes_of = |token| asked.bytes_of(token);
    let spelling = asked.spelling(&bytes_of);
    let mut tally = Tally::new(asked);
    tally.cached = answer.prompts.iter().map(|prompt| u64::from(prompt.cached_tokens)).sum();
    let with_prompt = |(index, choice): (usize, &crate::generation::Choice)| {
        [echo.text(index / asked.n).unwrap_or_default(), &choice.text].concat()
    };
    let texts: Vec<String> = answer.choices.iter().enumerate().map(with_prompt).collect();
    let choices = answer.choices.iter().enumerate().map(|(index, choice)| {
        tally.output += choice.reports.len() as u64;
        let (prompt, reports) = (asked.prompt_of(index), &answer.prompts[index / asked.n].logprobs);
        let logprobs = asked.logprobs.then(|| {
            let echoed = echo.text(index / asked.n);
            let mut tokens = echoed.map(|_| prompt_tokens(asked, prompt, reports)).unwrap_or_default();
            let start = echoed.map_or(0, |text| text.chars().count());
            tokens.extend(choice.reports.iter().zip(&choice.offsets).map(|(report, offset)| {
                let (token, text_offset) = (report.chosen.token, start + offset);
                CompletionToken { token, report: Some(report), text_offset }
            }));
            CompletionLogprobs { tokens, spelling }
        });
        let told = AskedOfChoice {
            token_ids: asked.token_ids.then(|| choice.token_ids()),
            prompt_logprobs: echo.shows_logprobs.then_some(PromptLogprobs { reports, spelling }),
            prompt_token_ids: asked.token_ids.then_some(prompt),
        };
        CompletionChoice::new(index, &texts[index], choice.finish(), logprobs, told)
    });
    let choices = choices.collect();
    to_json(&Completion::new(&asked.envelope(), choices, tally.usage()))
}

/// The prompt's tokens before those of the answer. Their offsets count the text they spell, one after the other.
fn prompt_tokens<'a>(
    asked: &Asked,
    prompt: &[TokenId],
    reports: &'a [TokenReport],
) -> Vec<CompletionToken<'a>> {
    let reports = std::iter::once(None).chain(reports.iter().map(Some)).chain(std::iter::repeat(None));
    let mut text_offset = 0;
    let token = |(&token, report)| {
        let entry = CompletionToken { token, report, text_offset };
        let bytes = asked.bytes_of(token).unwrap_or_default();
        text_offset += String::from_utf8_lossy(bytes).chars().count();
        entry
    };
    prompt.iter().zip(reports).map(token).collect()
}

/// The chunks of a streamed text completion.
#[derive(Debug)]
pub(crate) struct CompletionFormat {
    asked: Asked,
    echo: EchoedPrompt,
    tally: Tally,
    choices: Vec<Progress>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    /// Characters of text it has had.
    n_chars: usize,
    has_begun: bool,
}

impl CompletionFormat {
    /// For the answer to what was asked.
    pub fn new(asked: Asked, echo: EchoedPrompt) -> Self {
        let tally = Tally::new(&asked);
        let choices = vec![Progress::default(); asked.prompts.len() * asked.n];
        Self { asked, echo, tally, choices }
    }

    fn push(
        &mut self,
        index: usize,
        text: &str,
        told: (Option<Finish<'_>>, Option<Vec<CompletionToken<'_>>>, Option<&[TokenId]>),
        events: &mut Events,
    ) {
        let (finish, tokens, token_ids) = told;
        let asked = &self.asked;
        let bytes_of = |token| asked.bytes_of(token);
        let logprobs =
            tokens.map(|tokens| CompletionLogprobs { tokens, spelling: asked.spelling(&bytes_of) });
        let mut choice = CompletionChunkChoice::new(index, text, finish, logprobs, token_ids);
        let progress = &mut self.choices[index];
        progress.n_chars += text.chars().count();
        if asked.token_ids && !std::mem::replace(&mut progress.has_begun, true) {
            choice = choice.with_prompt_token_ids(asked.prompt_of(index));
        }
        events.push(&CompletionChunk::new(&asked.envelope(), choice, self.tally.of_chunk(asked)));
    }

    fn push_echo(&mut self, prompt_idx: usize, reports: &[TokenReport], events: &mut Events) {
        let Some(text) = self.echo.text(prompt_idx).map(str::to_owned) else { return };
        for i in 0..self.asked.n {
            let index = prompt_idx * self.asked.n + i;
            let prompt = self.asked.prompt_of(index);
            let tokens = self.asked.logprobs.then(|| prompt_tokens(&self.asked, prompt, reports));
            self.push(index, &text, (None, tokens, None), events);
        }
    }

    fn push_token(&mut self, index: usize, text: &str, report: &TokenReport, events: &mut Events) {
        self.tally.output += 1;
        if text.is_empty() && !self.asked.logprobs && !self.asked.token_ids {
            return;
        }
        let (token, text_offset) = (report.chosen.token, self.choices[index].n_chars);
        let tokens =
            self.asked.logprobs.then(|| vec![CompletionToken { token, report: Some(report), text_offset }]);
        let token_ids = self.asked.token_ids.then_some([token]);
        self.push(index, text, (None, tokens, token_ids.as_ref().map(<[_; 1]>::as_slice)), events);
    }
}

impl StreamFormat for CompletionFormat {
    fn begin(&mut self, _: &mut Events) {}

    fn output(&mut self, output: Output, events: &mut Events) {
        match output {
            Output::Prompt { prompt_idx, cached_tokens, logprobs } => {
                self.tally.cached += u64::from(cached_tokens);
                self.push_echo(prompt_idx, &logprobs, events);
            }
            Output::Token { choice_idx, text, report } => self.push_token(choice_idx, &text, &report, events),
            Output::Finished { choice_idx, text, reason, stop, .. } => {
                let finish = Some(Finish::new(reason, stop.as_deref()));
                self.push(choice_idx, &text, (finish, None, None), events);
            }
            Output::Failed(_) => {}
        }
    }

    fn end(&mut self, events: &mut Events) {
        if self.asked.options.include_usage {
            events.push(&CompletionChunk::of_usage(&self.asked.envelope(), self.tally.usage()));
        }
        events.push_done();
    }
}
