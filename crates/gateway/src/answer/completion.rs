//! Text completions, whole and in chunks. Does not know tokenizing.

use std::ops::Range;

use throng_api::Events;
use throng_core::request::TokenId;

use super::text_offsets::TextPlace;
use super::{Asked, Tally};
use crate::generation::{Answer, FrameWriter, Frames, LogprobBytes, Output, StreamFormat};
use crate::replica::TokenReport;
use throng_api::ApiError;
use throng_api::openai::completion_response::{
    AskedOfChoice, Completion, CompletionChoice, CompletionChunk, CompletionChunkChoice, EchoedText,
};
use throng_api::openai::logprobs::{CompletionLogprobs, CompletionToken, PromptLogprobs};
use throng_api::openai::response::Finish;

/// An event of a stream repeats about this many bytes of a prompt; the rest follows in further events.
const ECHO_EVENT_BYTES: usize = 16 << 10;

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
///
/// # Errors
/// When it is too large for `out`.
pub(crate) fn text_completion(
    asked: &Asked,
    echo: &EchoedPrompt,
    answer: &Answer,
    out: FrameWriter,
) -> Result<Frames, ApiError> {
    let bytes_of = |token| asked.bytes_of(token);
    let spelling = asked.spelling(&bytes_of);
    let mut tally = Tally::new(asked);
    tally.cached = answer.prompts.iter().map(|prompt| u64::from(prompt.cached_tokens)).sum();
    let echoes_tokens = asked.logprobs && echo.texts.is_some();
    let echoed = answer.prompts.iter().zip(&asked.prompts).enumerate().map(|(idx, (report, prompt))| {
        let range = if echoes_tokens { 0..prompt.len() } else { 0..0 };
        let text = echo.text(idx).unwrap_or_default();
        prompt_tokens(asked, (text, prompt), range, &report.logprobs, &mut TextPlace::default())
    });
    let echoed: Vec<_> = echoed.collect();
    tally.output = answer.discarded_tokens;
    let choices = answer.choices.iter().enumerate().map(|(index, choice)| {
        tally.output += choice.reports.len() as u64;
        let (prompt, reports) = (asked.prompt_of(index), &answer.prompts[index / asked.n].logprobs);
        let logprobs = asked.logprobs.then(|| {
            let start = echo.text(index / asked.n).map_or(0, |text| text.chars().count());
            let tokens = choice.reports.iter().zip(&choice.offsets).map(|(report, offset)| {
                let (token, text_offset) = (report.chosen.token, start + offset);
                CompletionToken { token, report: Some(report), text_offset }
            });
            let echoed = &*echoed[index / asked.n];
            CompletionLogprobs { echoed, tokens: tokens.collect(), spelling }
        });
        let told = AskedOfChoice {
            token_ids: asked.token_ids.then(|| choice.token_ids()),
            prompt_logprobs: echo.shows_logprobs.then_some(PromptLogprobs { reports, spelling }),
            prompt_token_ids: asked.token_ids.then_some(prompt),
        };
        let prompt = echo.text(index / asked.n).unwrap_or_default();
        let text = EchoedText { prompt, answer: &choice.text };
        CompletionChoice::new(index, text, choice.finish(), logprobs, told)
    });
    let choices = choices.collect();
    out.json(&Completion::new(&asked.envelope(), choices, tally.usage()))
}

/// Some tokens of a prompt, of which the first begins at `place` in the prompt's text.
fn prompt_tokens<'a>(
    asked: &Asked,
    (text, prompt): (&str, &[TokenId]),
    range: Range<usize>,
    reports: &'a [TokenReport],
    place: &mut TextPlace,
) -> Vec<CompletionToken<'a>> {
    let token = |idx: usize| {
        // Nothing predicts the first.
        let report = idx.checked_sub(1).and_then(|idx| reports.get(idx));
        let entry = CompletionToken { token: prompt[idx], report, text_offset: place.char_idx() };
        place.advance(text, asked.bytes_of(prompt[idx]).unwrap_or_default(), asked.is_control(prompt[idx]));
        entry
    };
    range.map(token).collect()
}

/// The chunks of a streamed text completion.
#[derive(Debug)]
pub(crate) struct CompletionFormat {
    asked: Asked,
    echo: EchoedPrompt,
    tally: Tally,
    choices: Vec<Progress>,
    echoing: Option<Echoing>,
}

/// How far a prompt has been repeated for its choices.
#[derive(Debug)]
struct Echoing {
    prompt_idx: usize,
    reports: Vec<TokenReport>,
    /// The choice of the prompt for which it is repeated next.
    nth: usize,
    /// Bytes of the text, and tokens, that this choice has had.
    n_bytes: usize,
    n_tokens: usize,
    /// Where the next token's text begins.
    place: TextPlace,
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
        Self { asked, echo, tally, choices, echoing: None }
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
        let logprobs = tokens.map(|tokens| CompletionLogprobs {
            echoed: &[],
            tokens,
            spelling: asked.spelling(&bytes_of),
        });
        let mut choice = CompletionChunkChoice::new(index, text, finish, logprobs, token_ids);
        let progress = &mut self.choices[index];
        progress.n_chars += text.chars().count();
        if asked.token_ids && !std::mem::replace(&mut progress.has_begun, true) {
            choice = choice.with_prompt_token_ids(asked.prompt_of(index));
        }
        events.push(&CompletionChunk::new(&asked.envelope(), choice, self.tally.of_chunk(asked)));
    }

    /// Repeats the next piece of a prompt for a choice; whether there was one.
    fn push_echo(&mut self, events: &mut Events) -> bool {
        let Some(mut echoing) = self.echoing.take() else { return false };
        let Echoing { prompt_idx, nth, .. } = echoing;
        let index = prompt_idx * self.asked.n + nth;
        let Some(text) = self.echo.text(prompt_idx) else { return false };
        let rest = &text[echoing.n_bytes..];
        let piece = rest[..rest.floor_char_boundary(ECHO_EVENT_BYTES)].to_owned();
        echoing.n_bytes += piece.len();
        let mut is_done = piece.len() == rest.len();
        let tokens = self.asked.logprobs.then(|| {
            let prompt = self.asked.prompt_of(index);
            let n_top = echoing.reports.first().map_or(0, |report| report.top.len());
            let n_tokens = (ECHO_EVENT_BYTES / LogprobBytes::COMPLETION.with(n_top)).max(1);
            let range = echoing.n_tokens..prompt.len().min(echoing.n_tokens + n_tokens);
            is_done &= range.end == prompt.len();
            echoing.n_tokens = range.end;
            prompt_tokens(&self.asked, (text, prompt), range, &echoing.reports, &mut echoing.place)
        });
        self.push(index, &piece, (None, tokens, None), events);
        if is_done {
            (echoing.nth, echoing.n_bytes, echoing.n_tokens) = (nth + 1, 0, 0);
            echoing.place = TextPlace::default();
        }
        self.echoing = (echoing.nth < self.asked.n).then_some(echoing);
        true
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
    fn more(&mut self, events: &mut Events) -> bool {
        self.push_echo(events)
    }

    fn output(&mut self, output: Output, events: &mut Events) {
        match output {
            Output::Prompt { prompt_idx, cached_tokens, logprobs } => {
                self.tally.cached += u64::from(cached_tokens);
                let (reports, place) = (logprobs, TextPlace::default());
                self.echoing = Some(Echoing { prompt_idx, reports, nth: 0, n_bytes: 0, n_tokens: 0, place });
            }
            Output::Token { choice_idx, text, report } => self.push_token(choice_idx, &text, &report, events),
            Output::Finished { choice_idx, text, reason, stop, is_filtered, timing } => {
                self.tally.ended(&timing);
                let finish =
                    if is_filtered { Finish::filtered() } else { Finish::new(reason, stop.as_deref()) };
                let finish = Some(finish);
                self.push(choice_idx, &text, (finish, None, None), events);
            }
            Output::Failed(_) => {}
        }
    }

    fn end(&mut self, events: &mut Events) {
        if self.asked.options.include_usage {
            let (usage, timings) = (self.tally.usage(), self.tally.timings(&self.asked));
            events.push(&CompletionChunk::of_usage(&self.asked.envelope(), usage, timings));
        }
        events.push_done();
    }
}
