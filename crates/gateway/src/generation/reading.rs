//! The text of a chat's answers as reasoning, content and calls of tools. Does not know formats, which are the text crate's,
//! and the wire.

use std::sync::Arc;

use throng_core::request::TokenId;
use throng_text::{
    AnswerEvent, AnswerFormat, AnswerParser, ParseOptions, Tokenizer, ToolCallFormat, ToolSchemas,
};

use super::choice::Choice;
use crate::served_model::ModelEntry;
use throng_api::ApiError;
use throng_api::openai::ChatRequest;
use throng_api::openai::response::call_id;

/// How all choices of an answer are read.
#[derive(Debug, Clone)]
pub(crate) struct AnswerReading {
    format: Arc<AnswerFormat>,
    tokenizer: Arc<Tokenizer>,
    options: ParseOptions,
    shows_reasoning: bool,
}

impl AnswerReading {
    /// How the answer to `request` is read; `None`: it is given as it is.
    ///
    /// # Errors
    /// 400 for tools of a model that has no known way to call them.
    pub fn of(model: &ModelEntry, request: &ChatRequest) -> Result<Option<Self>, ApiError> {
        let format = &model.served.answer_format;
        if request.calls_tools && format.tool_calls.is_none() {
            let reason = "This model's chat template has no known format of tool calls: send tools with \
                          'tool_choice' 'none', or start the server with --tool-call-parser.";
            return Err(ApiError::unsupported_by_model("tools", reason));
        }
        let Some(tokenizer) = model.served.tokenizer.clone() else { return Ok(None) };
        if format.is_plain(request.calls_tools) {
            return Ok(None);
        }
        let tools = request.calls_tools.then(|| Arc::new(ToolSchemas::new(&request.conversation.tools)));
        let past = request.conversation.messages.iter().map(|message| message.tool_calls.len());
        let options = ParseOptions {
            n_past_calls: past.sum(),
            tools,
            only_first_call: request.only_first_call,
            in_reasoning: false,
            continues_message: request.conversation.continues_final_message(),
        };
        let shows_reasoning = request.shows_reasoning;
        Ok(Some(Self { format: format.clone(), tokenizer, options, shows_reasoning }))
    }

    /// Says whether the prompt ends inside the reasoning.
    pub fn in_reasoning(&mut self, in_reasoning: bool) {
        self.options.in_reasoning = in_reasoning;
    }

    /// A reader for one choice.
    pub fn reader(&self) -> ChoiceReader {
        ChoiceReader {
            parser: AnswerParser::new(&self.format, self.options.clone()),
            markers: self.format.control_tokens(),
            tokenizer: self.tokenizer.clone(),
            marker: None,
            shows_reasoning: self.shows_reasoning,
            has_calls: false,
            reasoning_tokens: 0,
        }
    }

    /// The id of a call: its own, or a new one.
    pub fn call_id(&self, own: Option<&str>) -> String {
        if let Some(id) = own {
            return id.to_owned();
        }
        call_id(self.format.tool_calls.is_some_and(ToolCallFormat::has_short_ids))
    }

    /// A whole choice.
    pub fn read(&self, choice: &Choice) -> ReadChoice {
        let mut reader = self.reader();
        let mut read = ReadChoice::default();
        let mut rest = choice.text.as_str();
        for (idx, report) in choice.reports.iter().enumerate() {
            // What comes after the last token's place is known only together with what was held back.
            let n_chars = choice.offsets.get(idx + 1).map_or(0, |next| next - choice.offsets[idx]);
            let end = rest.char_indices().nth(n_chars).map_or(rest.len(), |(at, _)| at);
            let (text, after) = rest.split_at(end);
            read.add(self, reader.token(text, report.chosen.token));
            rest = after;
        }
        read.add(self, reader.finish(rest));
        read.reasoning_tokens = reader.reasoning_tokens();
        read
    }
}

/// Reads a choice as it comes.
#[derive(Debug)]
pub(crate) struct ChoiceReader {
    parser: AnswerParser,
    markers: Vec<TokenId>,
    tokenizer: Arc<Tokenizer>,
    /// The last token, if it is a marker. One that ends the answer comes after text that is still held back.
    marker: Option<TokenId>,
    shows_reasoning: bool,
    has_calls: bool,
    reasoning_tokens: u64,
}

impl ChoiceReader {
    /// The next token came and made `text` certain, which stands before it if it is a marker.
    pub fn token(&mut self, text: &str, token: TokenId) -> Vec<AnswerEvent> {
        let mut events = self.take_marker();
        let was_reasoning = self.parser.in_reasoning();
        events.extend(self.parser.push_text(text));
        self.marker = self.markers.contains(&token).then_some(token);
        let is_reasoning = was_reasoning && self.parser.in_reasoning() && self.marker.is_none();
        self.reasoning_tokens += u64::from(is_reasoning);
        self.shown(events)
    }

    /// The choice ended with `text`.
    pub fn finish(&mut self, text: &str) -> Vec<AnswerEvent> {
        let mut events = self.parser.push_text(text);
        events.extend(self.take_marker());
        events.extend(self.parser.finish());
        self.shown(events)
    }

    fn take_marker(&mut self) -> Vec<AnswerEvent> {
        match self.marker.take() {
            Some(token) => self.parser.push_control(&self.tokenizer.token_text(token)),
            None => Vec::new(),
        }
    }

    /// Tokens between those that open and close the reasoning; the first and the last may be of both.
    pub fn reasoning_tokens(&self) -> u64 {
        self.reasoning_tokens
    }

    /// Whether tools have been called.
    pub fn has_calls(&self) -> bool {
        self.has_calls
    }

    fn shown(&mut self, mut events: Vec<AnswerEvent>) -> Vec<AnswerEvent> {
        self.has_calls |= events.iter().any(|event| matches!(event, AnswerEvent::ToolCallBegin { .. }));
        events.retain(|event| match event {
            AnswerEvent::Reasoning(_) => self.shows_reasoning,
            AnswerEvent::ToolCallEnd { .. } => false,
            _ => true,
        });
        events
    }
}

/// The parts of a whole choice.
#[derive(Debug, Default)]
pub(crate) struct ReadChoice {
    /// What is said.
    pub content: String,
    /// What was thought before.
    pub reasoning: String,
    /// Tokens of the reasoning.
    pub reasoning_tokens: u64,
    /// The calls, in their order.
    pub calls: Vec<ReadCall>,
}

/// A whole call.
#[derive(Debug)]
pub(crate) struct ReadCall {
    /// What its answer refers to.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments as the model wrote them.
    pub arguments: String,
}

impl ReadChoice {
    fn add(&mut self, reading: &AnswerReading, events: Vec<AnswerEvent>) {
        for event in events {
            match event {
                AnswerEvent::Content(text) => self.content.push_str(&text),
                AnswerEvent::Reasoning(text) => self.reasoning.push_str(&text),
                AnswerEvent::ToolCallBegin { name, id, .. } => {
                    let id = reading.call_id(id.as_deref());
                    self.calls.push(ReadCall { id, name, arguments: String::new() });
                }
                AnswerEvent::ToolCallArguments { fragment, .. } => {
                    if let Some(call) = self.calls.last_mut() {
                        call.arguments.push_str(&fragment);
                    }
                }
                AnswerEvent::ToolCallEnd { .. } => {}
            }
        }
    }
}
