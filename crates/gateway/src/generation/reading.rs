//! Parses the text of a choice into reasoning, content and calls of tools. The formats are the text
//! crate's.

use std::sync::Arc;

use throng_api::ApiError;
use throng_api::answer::Delta;
use throng_api::openai::response::call_id;
use throng_api::spec::ChatInput;
use throng_core::request::TokenId;
use throng_text::{
    AnswerEvent as ParsedEvent, AnswerFormat, AnswerParser, ParseOptions, Tokenizer, ToolCallFormat,
    ToolSchemas,
};

use crate::served_model::ModelEntry;

/// Parser settings of all choices of an answer.
#[derive(Debug, Clone)]
pub(crate) struct AnswerReading {
    format: Arc<AnswerFormat>,
    tokenizer: Arc<Tokenizer>,
    options: ParseOptions,
    shows_reasoning: bool,
}

impl AnswerReading {
    /// Creates the settings for the answer to `chat`; `None` if its text is content as it is.
    ///
    /// # Errors
    /// 400 for tools of a model without a known format of calls.
    pub fn of(model: &ModelEntry, chat: &ChatInput) -> Result<Option<Self>, ApiError> {
        let format = &model.served.answer_format;
        if chat.calls_tools && format.tool_calls.is_none() {
            let reason = "This model's chat template has no known format of tool calls: send tools with \
                          'tool_choice' 'none', or start the server with --tool-call-parser.";
            return Err(ApiError::unsupported_by_model("tools", reason));
        }
        let Some(tokenizer) = model.served.tokenizer.clone() else { return Ok(None) };
        if format.is_plain(chat.calls_tools) {
            return Ok(None);
        }
        let tools = chat.calls_tools.then(|| Arc::new(ToolSchemas::new(&chat.conversation.tools)));
        let past = chat.conversation.messages.iter().map(|message| message.tool_calls.len());
        let options = ParseOptions {
            n_past_calls: past.sum(),
            tools,
            only_first_call: chat.only_first_call,
            in_reasoning: false,
            continues_message: chat.conversation.continues_final_message(),
        };
        let shows_reasoning = chat.shows_reasoning;
        Ok(Some(Self { format: format.clone(), tokenizer, options, shows_reasoning }))
    }

    /// Sets whether the prompt ends inside the reasoning.
    pub fn in_reasoning(&mut self, in_reasoning: bool) {
        self.options.in_reasoning = in_reasoning;
    }

    /// Creates a parser for one choice.
    pub fn reader(&self) -> ChoiceReader {
        ChoiceReader {
            parser: AnswerParser::new(&self.format, self.options.clone()),
            markers: self.format.control_tokens(),
            has_short_ids: self.format.tool_calls.is_some_and(ToolCallFormat::has_short_ids),
            tokenizer: self.tokenizer.clone(),
            marker: None,
            shows_reasoning: self.shows_reasoning,
            has_calls: false,
        }
    }
}

/// Incremental parser of a choice.
#[derive(Debug)]
pub(crate) struct ChoiceReader {
    parser: AnswerParser,
    markers: Vec<TokenId>,
    has_short_ids: bool,
    tokenizer: Arc<Tokenizer>,
    /// Last token, if it is a marker. A marker that ends the answer follows text that is still held back.
    marker: Option<TokenId>,
    shows_reasoning: bool,
    has_calls: bool,
}

/// Result of parsing a token.
#[derive(Debug)]
pub(crate) struct ReadToken {
    /// Additions to the choice.
    pub deltas: Vec<Delta>,
    /// Whether the token is inside the reasoning.
    pub is_reasoning: bool,
}

impl ChoiceReader {
    /// Parses the next token and the completed `text`, which is before the token if that is a marker.
    pub fn token(&mut self, text: &str, token: TokenId) -> ReadToken {
        let mut events = self.take_marker();
        let was_reasoning = self.parser.in_reasoning();
        events.extend(self.parser.push_text(text));
        self.marker = self.markers.contains(&token).then_some(token);
        let is_reasoning = was_reasoning && self.parser.in_reasoning() && self.marker.is_none();
        ReadToken { deltas: self.shown(events), is_reasoning }
    }

    /// Parses the last `text` of the choice.
    pub fn finish(&mut self, text: &str) -> Vec<Delta> {
        let mut events = self.parser.push_text(text);
        events.extend(self.take_marker());
        events.extend(self.parser.finish());
        self.shown(events)
    }

    fn take_marker(&mut self) -> Vec<ParsedEvent> {
        match self.marker.take() {
            Some(token) => self.parser.push_control(&self.tokenizer.token_text(token)),
            None => Vec::new(),
        }
    }

    /// Whether the choice has calls.
    pub fn has_calls(&self) -> bool {
        self.has_calls
    }

    fn shown(&mut self, events: Vec<ParsedEvent>) -> Vec<Delta> {
        events.into_iter().filter_map(|event| self.delta(event)).collect()
    }

    fn delta(&mut self, event: ParsedEvent) -> Option<Delta> {
        match event {
            ParsedEvent::Content(text) => Some(Delta::Content(text)),
            ParsedEvent::Reasoning(text) => self.shows_reasoning.then_some(Delta::Reasoning(text)),
            ParsedEvent::ToolCallBegin { index, id, name } => {
                self.has_calls = true;
                let id = id.unwrap_or_else(|| call_id(self.has_short_ids));
                Some(Delta::CallBegin { call_idx: index, id, name })
            }
            ParsedEvent::ToolCallArguments { index, fragment } => {
                Some(Delta::CallArguments { call_idx: index, fragment })
            }
            ParsedEvent::ToolCallEnd { .. } => None,
        }
    }
}
