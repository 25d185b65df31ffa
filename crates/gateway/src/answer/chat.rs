//! Chat completions, whole and in chunks. Does not know templates.

use throng_api::Events;
use throng_text::AnswerEvent;

use super::{Asked, Tally};
use crate::generation::{Answer, ChoiceReader, FrameWriter, Frames, Output, ReadChoice, StreamFormat};
use crate::replica::TokenReport;
use throng_api::ApiError;
use throng_api::openai::chat_response::{
    AssistantMessage, CalledTool, ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatDelta,
};
use throng_api::openai::logprobs::{ChatLogprobs, PromptLogprobs};
use throng_api::openai::response::Finish;

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
    let read = asked.reading.as_ref();
    let read: Option<Vec<ReadChoice>> =
        read.map(|reading| answer.choices.iter().map(|choice| reading.read(choice)).collect());
    tally.reasoning = read.iter().flatten().map(|read| read.reasoning_tokens).sum();
    tally.output = answer.discarded_tokens;
    let choices = answer.choices.iter().enumerate().map(|(index, choice)| {
        tally.output += choice.reports.len() as u64;
        let logprobs = asked.logprobs.then_some(ChatLogprobs { reports: &choice.reports, spelling });
        let token_ids = asked.token_ids.then(|| choice.token_ids());
        let (message, finish) = match read.as_ref().and_then(|read| read.get(index)) {
            Some(read) if read.calls.is_empty() => (message_of(read), choice.finish()),
            Some(read) => (message_of(read), choice.finish().with_calls()),
            None => (AssistantMessage::text(&choice.text), choice.finish()),
        };
        ChatChoice::new(index, message, finish, logprobs, token_ids)
    });
    let choices = choices.collect();
    let prompt_logprobs = prompt
        .filter(|_| asked.prompt_logprobs)
        .map(|prompt| PromptLogprobs { reports: &prompt.logprobs, spelling });
    let prompt_ids = if asked.token_ids { asked.prompts.first().map(|prompt| &**prompt) } else { None };
    out.json(&ChatCompletion::new(&asked.envelope(), choices, tally.usage(), prompt_logprobs, prompt_ids))
}

fn message_of(read: &ReadChoice) -> AssistantMessage<'_> {
    let calls = read.calls.iter().map(|call| CalledTool::whole(&call.id, &call.name, &call.arguments));
    AssistantMessage::new(&read.content, &read.reasoning, calls.collect())
}

/// The chunks of a streamed chat completion.
#[derive(Debug)]
pub(crate) struct ChatFormat {
    asked: Asked,
    tally: Tally,
    /// Choices whose first chunk has been sent.
    n_begun: usize,
    /// One a choice, where the text is read.
    readers: Vec<ChoiceReader>,
}

impl ChatFormat {
    /// For the answer to what was asked.
    pub fn new(asked: Asked) -> Self {
        let tally = Tally::new(&asked);
        let reading = asked.reading.iter();
        let readers = reading.flat_map(|reading| (0..asked.n).map(|_| reading.reader())).collect();
        Self { asked, tally, n_begun: 0, readers }
    }

    fn push<'a>(&'a self, choice: ChatChunkChoice<'a>, events: &mut Events) {
        events.push(&ChatChunk::new(&self.asked.envelope(), choice, self.tally.of_chunk(&self.asked)));
    }

    fn push_token(&mut self, index: usize, text: &str, report: &TokenReport, events: &mut Events) {
        self.tally.output += 1;
        let asked = &self.asked;
        let told = self.readers.get_mut(index).map(|reader| {
            let n_before = reader.reasoning_tokens();
            let told = reader.token(text, report.chosen.token);
            self.tally.reasoning += reader.reasoning_tokens() - n_before;
            told
        });
        let nothing_new = told.as_ref().map_or(text.is_empty(), Vec::is_empty);
        if nothing_new && !asked.logprobs && !asked.token_ids {
            return;
        }
        let bytes_of = |token| asked.bytes_of(token);
        let reports = std::slice::from_ref(report);
        let logprobs = asked.logprobs.then(|| ChatLogprobs { reports, spelling: asked.spelling(&bytes_of) });
        let token_ids = [report.chosen.token];
        let token_ids = asked.token_ids.then_some(token_ids.as_slice());
        let Some(told) = told else {
            let delta = ChatDelta::content(Some(text));
            return self.push(ChatChunkChoice::new(index, delta, None, logprobs, token_ids), events);
        };
        let mut told = told.iter();
        // The first of a token's chunks tells what is known of the token.
        let first = told.next();
        let call_id = first.map(|event| self.call_id(event)).unwrap_or_default();
        let delta = first.map(|event| delta_of(event, &call_id)).unwrap_or_default();
        self.push(ChatChunkChoice::new(index, delta, None, logprobs, token_ids), events);
        told.for_each(|event| self.push_event(index, event, events));
    }

    fn push_event(&self, index: usize, event: &AnswerEvent, events: &mut Events) {
        let call_id = self.call_id(event);
        self.push(ChatChunkChoice::new(index, delta_of(event, &call_id), None, None, None), events);
    }

    /// The id of the call that begins with `event`, if one does.
    fn call_id(&self, event: &AnswerEvent) -> String {
        match (event, &self.asked.reading) {
            (AnswerEvent::ToolCallBegin { id, .. }, Some(reading)) => reading.call_id(id.as_deref()),
            _ => String::new(),
        }
    }
}

/// What an event changes in a message; `call_id` is the id of a call that begins.
fn delta_of<'a>(event: &'a AnswerEvent, call_id: &'a str) -> ChatDelta<'a> {
    match event {
        AnswerEvent::Content(text) => ChatDelta::content(Some(text)),
        AnswerEvent::Reasoning(text) => ChatDelta::reasoning(text),
        AnswerEvent::ToolCallBegin { index, name, .. } => {
            ChatDelta::call(CalledTool::begun(*index, call_id, name))
        }
        AnswerEvent::ToolCallArguments { index, fragment } => {
            ChatDelta::call(CalledTool::more(*index, fragment))
        }
        AnswerEvent::ToolCallEnd { .. } => ChatDelta::default(),
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
            Output::Finished { choice_idx, text, reason, stop, is_filtered, timing } => {
                self.tally.ended(&timing);
                let mut finish =
                    if is_filtered { Finish::filtered() } else { Finish::new(reason, stop.as_deref()) };
                let mut content = (!text.is_empty()).then_some(text.as_str());
                if let Some(reader) = self.readers.get_mut(choice_idx) {
                    let told = reader.finish(&text);
                    finish = if reader.has_calls() { finish.with_calls() } else { finish };
                    told.iter().for_each(|event| self.push_event(choice_idx, event, events));
                    content = None;
                }
                let delta = ChatDelta::content(content);
                self.push(ChatChunkChoice::new(choice_idx, delta, Some(finish), None, None), events);
            }
            Output::Failed(_) => {}
        }
    }

    fn end(&mut self, events: &mut Events) {
        if self.asked.options.include_usage {
            let (usage, timings) = (self.tally.usage(), self.tally.timings(&self.asked));
            events.push(&ChatChunk::of_usage(&self.asked.envelope(), usage, timings));
        }
        events.push_done();
    }
}
