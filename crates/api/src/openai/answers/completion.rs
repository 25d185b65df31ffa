//! Writes text completions, whole or in chunks.

use std::borrow::Cow;
use std::io;
use std::ops::Range;

use throng_core::fleet::replica::TokenReport;
use throng_core::request::TokenId;

use super::text_offsets::TextPlace;
use super::{Response, ResponseOptions, finish, push_error, usage};
use crate::answer::{Answer, AnswerEvent, AnswerShape, Delta, LogprobBytes};
use crate::dialect::{AnswerFacts, AnswerView, AnswerWriter};
use crate::error::ApiError;
use crate::events::Events;
use crate::openai::completion_response::{
    AskedOfChoice, Completion, CompletionChoice, CompletionChunk, CompletionChunkChoice, EchoedText,
};
use crate::openai::logprobs::{CompletionLogprobs, CompletionToken, PROMPT_LOGPROB_BYTES, PromptLogprobs};
use crate::openai::response::Finish;
use crate::spec::{GenerationSpec, Input};

/// Approximate bytes of an echoed prompt in one event; the rest follows in further events.
const ECHO_EVENT_BYTES: usize = 16 << 10;
/// Bytes of a token in `choices[].logprobs`.
const LOGPROB_BYTES: LogprobBytes = LogprobBytes { token: 64, alternative: 24 };

/// The client's options for a text completion.
#[derive(Debug)]
pub(super) struct CompletionView {
    options: ResponseOptions,
    /// Whether `prompt_logprobs` are written under that name.
    shows_prompt_logprobs: bool,
}

impl CompletionView {
    pub fn new(options: ResponseOptions, shows_prompt_logprobs: bool) -> Self {
        Self { options, shows_prompt_logprobs }
    }
}

impl AnswerView for CompletionView {
    fn shape(&self, spec: &GenerationSpec) -> AnswerShape {
        let logprobs = spec.options.logprobs.map(|_| LOGPROB_BYTES);
        let echoes = matches!(&spec.input, Input::Prompts(input) if input.repeats_texts);
        let forms = [logprobs.filter(|_| echoes), self.shows_prompt_logprobs.then_some(PROMPT_LOGPROB_BYTES)];
        AnswerShape {
            n_repeats: self.options.n,
            prompt_logprobs: forms.into_iter().flatten().collect(),
            prompt_logprobs_param: if self.shows_prompt_logprobs { "prompt_logprobs" } else { "logprobs" },
            logprobs,
            ..self.options.shape()
        }
    }

    fn writer(self: Box<Self>, facts: AnswerFacts) -> Box<dyn AnswerWriter> {
        let response = Response::new(self.options, facts);
        let choices = vec![ChoiceProgress::default(); response.facts.prompts.len() * response.options.n];
        let shows_prompt_logprobs = self.shows_prompt_logprobs;
        Box::new(CompletionWriter { response, shows_prompt_logprobs, choices, echoing: None })
    }
}

/// Tokens of a prompt in `range`. The text of the first one starts at `place`.
fn prompt_tokens<'a>(
    response: &Response,
    (text, prompt): (&str, &[TokenId]),
    range: Range<usize>,
    reports: &'a [TokenReport],
    place: &mut TextPlace,
) -> Vec<CompletionToken<'a>> {
    let token = |idx: usize| {
        // The first token has no log-probability.
        let report = idx.checked_sub(1).and_then(|idx| reports.get(idx));
        let entry = CompletionToken { token: prompt[idx], report, text_offset: place.char_idx() };
        let bytes = response.bytes_of(prompt[idx]).unwrap_or_default();
        place.advance(text, bytes, response.is_control(prompt[idx]));
        entry
    };
    range.map(token).collect()
}

/// Writes text completions.
#[derive(Debug)]
struct CompletionWriter {
    response: Response,
    shows_prompt_logprobs: bool,
    choices: Vec<ChoiceProgress>,
    echoing: Option<Echoing>,
}

/// Progress of echoing a prompt for each of its choices.
#[derive(Debug)]
struct Echoing {
    prompt_idx: usize,
    reports: Vec<TokenReport>,
    /// Index of the choice within the prompt that is echoed next.
    nth: usize,
    /// Bytes of the prompt's text, and tokens, echoed for this choice.
    n_bytes: usize,
    n_tokens: usize,
    /// Start of the next token's text.
    place: TextPlace,
}

#[derive(Debug, Clone, Copy, Default)]
struct ChoiceProgress {
    /// Number of characters of text sent for this choice.
    n_chars: usize,
    has_begun: bool,
}

impl CompletionWriter {
    fn push(
        &mut self,
        index: usize,
        text: &str,
        told: (Option<Finish<'_>>, Option<Vec<CompletionToken<'_>>>, Option<&[TokenId]>),
        out: &mut Events,
    ) {
        let (finish, tokens, token_ids) = told;
        let response = &self.response;
        let bytes_of = |token| response.bytes_of(token);
        let spelling = response.spelling(&bytes_of);
        let logprobs = tokens.map(|tokens| CompletionLogprobs { echoed: &[], tokens, spelling });
        let mut choice = CompletionChunkChoice::new(index, text, finish, logprobs, token_ids);
        let progress = &mut self.choices[index];
        progress.n_chars += text.chars().count();
        if response.options.token_ids && !std::mem::replace(&mut progress.has_begun, true) {
            choice = choice.with_prompt_token_ids(response.prompt_of(index));
        }
        out.push(&CompletionChunk::new(&response.envelope(), choice, response.chunk_usage()));
    }

    /// Writes the next piece of an echoed prompt. Returns whether there was one.
    fn push_echo(&mut self, out: &mut Events) -> bool {
        let Some(mut echoing) = self.echoing.take() else { return false };
        let Echoing { prompt_idx, nth, .. } = echoing;
        let index = prompt_idx * self.response.options.n + nth;
        let Some(text) = self.response.text(prompt_idx) else { return false };
        let rest = &text[echoing.n_bytes..];
        let piece = rest[..rest.floor_char_boundary(ECHO_EVENT_BYTES)].to_owned();
        echoing.n_bytes += piece.len();
        let mut is_done = piece.len() == rest.len();
        let tokens = self.response.options.logprobs.then(|| {
            let prompt = self.response.prompt_of(index);
            let n_top = echoing.reports.first().map_or(0, |report| report.top.len());
            let n_tokens = (ECHO_EVENT_BYTES / LOGPROB_BYTES.with(n_top)).max(1);
            let range = echoing.n_tokens..prompt.len().min(echoing.n_tokens + n_tokens);
            is_done &= range.end == prompt.len();
            echoing.n_tokens = range.end;
            prompt_tokens(&self.response, (text, prompt), range, &echoing.reports, &mut echoing.place)
        });
        self.push(index, &piece, (None, tokens, None), out);
        if is_done {
            (echoing.nth, echoing.n_bytes, echoing.n_tokens) = (nth + 1, 0, 0);
            echoing.place = TextPlace::default();
        }
        self.echoing = (echoing.nth < self.response.options.n).then_some(echoing);
        true
    }

    fn push_token(&mut self, index: usize, text: &str, report: Option<&TokenReport>, out: &mut Events) {
        let options = &self.response.options;
        let (logprobs, token_ids) = (options.logprobs, options.token_ids);
        let report = report.filter(|_| logprobs || token_ids);
        if text.is_empty() && report.is_none() {
            return;
        }
        let text_offset = self.choices[index].n_chars;
        let tokens = report.filter(|_| logprobs).map(|report| {
            vec![CompletionToken { token: report.chosen.token, report: Some(report), text_offset }]
        });
        let token_ids = report.filter(|_| token_ids).map(|report| [report.chosen.token]);
        self.push(index, text, (None, tokens, token_ids.as_ref().map(<[_; 1]>::as_slice)), out);
    }
}

/// The text of deltas; text completions have no other kind.
fn text_of(deltas: &[Delta]) -> Cow<'_, str> {
    match deltas {
        [] => Cow::Borrowed(""),
        [Delta::Content(text)] => Cow::Borrowed(text),
        deltas => deltas.iter().filter_map(|delta| delta.content()).collect(),
    }
}

impl AnswerWriter for CompletionWriter {
    fn more(&mut self, out: &mut Events) -> bool {
        self.push_echo(out)
    }

    fn event(&mut self, event: AnswerEvent, out: &mut Events) {
        self.response.tally.add(&event);
        match event {
            AnswerEvent::Prompt { prompt_idx, logprobs, .. } => {
                let (reports, place) = (logprobs, TextPlace::default());
                self.echoing = Some(Echoing { prompt_idx, reports, nth: 0, n_bytes: 0, n_tokens: 0, place });
            }
            AnswerEvent::Token { choice_idx, report, deltas, .. } => {
                self.push_token(choice_idx, &text_of(&deltas), report.as_ref(), out);
            }
            AnswerEvent::Finished { choice_idx, deltas, end } => {
                self.push(choice_idx, &text_of(&deltas), (Some(finish(Some(&end))), None, None), out);
            }
            AnswerEvent::Served(_) | AnswerEvent::Usage(_) | AnswerEvent::Failed(_) => {}
        }
    }

    fn end(&mut self, out: &mut Events) {
        self.response.push_end(CompletionChunk::of_usage, out);
    }

    fn error(&mut self, error: &ApiError, out: &mut Events) {
        push_error(error, out);
    }

    fn whole(&self, answer: &Answer, out: &mut dyn io::Write) -> io::Result<()> {
        let response = &self.response;
        let options = &response.options;
        let bytes_of = |token| response.bytes_of(token);
        let spelling = response.spelling(&bytes_of);
        let echoes_tokens = options.logprobs && response.facts.texts.is_some();
        let prompts = answer.prompts.iter().zip(&response.facts.prompts).enumerate();
        let echoed = prompts.map(|(idx, (report, prompt))| {
            let range = if echoes_tokens { 0..prompt.len() } else { 0..0 };
            let text = response.text(idx).unwrap_or_default();
            prompt_tokens(response, (text, prompt), range, &report.logprobs, &mut TextPlace::default())
        });
        let echoed: Vec<_> = echoed.collect();
        let choices = answer.choices.iter().enumerate().map(|(index, choice)| {
            let prompt_idx = index / options.n;
            let (prompt, reports) = (response.prompt_of(index), &answer.prompts[prompt_idx].logprobs);
            let logprobs = options.logprobs.then(|| {
                let start = response.text(prompt_idx).map_or(0, |text| text.chars().count());
                let tokens = choice.reports.iter().zip(&choice.offsets).map(|(report, offset)| {
                    let (token, text_offset) = (report.chosen.token, start + offset);
                    CompletionToken { token, report: Some(report), text_offset }
                });
                let echoed = &*echoed[prompt_idx];
                CompletionLogprobs { echoed, tokens: tokens.collect(), spelling }
            });
            let asked = AskedOfChoice {
                token_ids: options.token_ids.then(|| choice.token_ids()),
                prompt_logprobs: self.shows_prompt_logprobs.then_some(PromptLogprobs { reports, spelling }),
                prompt_token_ids: options.token_ids.then_some(prompt),
            };
            let prompt = response.text(prompt_idx).unwrap_or_default();
            let text = EchoedText { prompt, answer: &choice.content };
            CompletionChoice::new(index, text, finish(choice.end.as_ref()), logprobs, asked)
        });
        let choices = choices.collect();
        let whole = Completion::new(&response.envelope(), choices, usage(&answer.tally));
        Ok(serde_json::to_writer(out, &whole.with_timings(response.timings(&answer.tally)))?)
    }
}
