//! Splits an answer into its parts: reasoning, content, tool calls. Chooses the formats by name or by the
//! model's chat template, and combines their state machines. Depends on the tokens' text alone: the same
//! answer gives the same parts however it is split. Distinguishes only control tokens from others; does not
//! know requests and the wire.

use std::sync::Arc;

use crate::chat_template::ChatTemplate;
use crate::reasoning::{ReasoningFormat, ReasoningSpan};
use crate::tokenizer::{EncodeOptions, Tokenizer};
use crate::tool_calls::{
    AnswerEvent, CallIds, EventSink, Harmony, Machine, Scanner, Step, ToolCallFormat, ToolSchemas,
};

/// Formats of a model's reasoning and tool calls, with the markers among them that are control tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnswerFormat {
    /// Format of tool calls; `None` for a model without calls.
    pub tool_calls: Option<ToolCallFormat>,
    /// Format of reasoning; `None`: the model has none.
    pub reasoning: Option<ReasoningFormat>,
    control: Vec<(u32, &'static str)>,
}

impl AnswerFormat {
    /// Creates the formats of a model with this tokenizer. Ids are in the order of the markers.
    pub fn new(
        tool_calls: Option<ToolCallFormat>,
        reasoning: Option<ReasoningFormat>,
        tokenizer: &Tokenizer,
    ) -> Self {
        let mut markers = tool_calls.map(ToolCallFormat::markers).unwrap_or_default();
        markers.extend(reasoning.map(ReasoningFormat::markers).unwrap_or_default());
        markers.sort_unstable();
        markers.dedup();
        let control = markers.into_iter().filter_map(|text| Some((tokenizer.control_token(text)?, text)));
        Self { tool_calls, reasoning, control: control.collect() }
    }

    /// The format in which a model with this chat template calls tools.
    pub fn tool_calls_of(template: &ChatTemplate) -> Option<ToolCallFormat> {
        ToolCallFormat::of_template(&|text| template.has_in_source(text))
    }

    /// The format in which a model with this chat template marks its reasoning.
    pub fn reasoning_of(template: &ChatTemplate) -> Option<ReasoningFormat> {
        ReasoningFormat::of_template(&|text| template.has_in_source(text))
    }

    /// Determines a model's formats: the named ones, else those of its chat template. If the template
    /// describes no tools in a known format, that is [`ToolCallFormat::Generic`]. The name `none` means no
    /// format.
    pub fn of_model(
        template: Option<&ChatTemplate>,
        tokenizer: &Tokenizer,
        tool_calls: Option<&str>,
        reasoning: Option<&str>,
    ) -> Self {
        let tool_calls = match tool_calls {
            Some(name) => ToolCallFormat::named(name),
            None => template.map(|known| Self::tool_calls_of(known).unwrap_or(ToolCallFormat::Generic)),
        };
        let reasoning = match reasoning {
            Some(name) => ReasoningFormat::named(name),
            None => template.and_then(Self::reasoning_of),
        };
        Self::new(tool_calls, reasoning, tokenizer)
    }

    /// Ids of the markers that are control tokens, for [`crate::DetokenizeOptions::markers`].
    pub fn control_tokens(&self) -> Vec<u32> {
        self.control.iter().map(|(id, _)| *id).collect()
    }

    /// Markers that are control tokens, with their ids.
    pub fn control_markers(&self) -> &[(u32, &'static str)] {
        &self.control
    }

    /// The tokens of a text. Its markers become control tokens if the model has them. `None` if the tokenizer
    /// cannot encode the text.
    pub fn tokens_of(&self, text: &str, tokenizer: &Tokenizer) -> Option<Vec<u32>> {
        let found = |(id, marker): &(u32, &'static str)| text.find(marker).map(|at| (at, *id, marker.len()));
        let Some((at, id, n_bytes)) = self.control.iter().filter_map(found).min() else {
            let options = EncodeOptions { add_special_tokens: false, parse_special: false };
            return tokenizer.encode(text, options).ok();
        };
        let before = self.tokens_of(&text[..at], tokenizer)?;
        let after = self.tokens_of(&text[at + n_bytes..], tokenizer)?;
        Some([before, vec![id], after].concat())
    }

    /// First name of the tool call format.
    pub fn tool_calls_name(&self) -> &'static str {
        self.tool_calls.map_or("none", ToolCallFormat::name)
    }

    /// First name of the reasoning format.
    pub fn reasoning_name(&self) -> &'static str {
        let name = |known: &&(&str, _)| Some(known.1) == self.reasoning;
        ReasoningFormat::NAMES.iter().find(name).map_or("none", |known| known.0)
    }

    /// Whether answers need no parsing: there is no reasoning to separate and, without `calls_tools`, no
    /// calls.
    pub fn is_plain(&self, calls_tools: bool) -> bool {
        self.reasoning.is_none() && (!calls_tools || self.tool_calls.is_none())
    }
}

/// Options for parsing one answer.
#[derive(Debug, Clone, Default)]
pub struct ParseOptions {
    /// Tools of the request; `None`: calls are not parsed.
    pub tools: Option<Arc<ToolSchemas>>,
    /// Whether only the first call counts (`parallel_tool_calls: false`).
    pub only_first_call: bool,
    /// Whether the prompt ends inside the reasoning.
    pub in_reasoning: bool,
    /// Whether the answer continues a message of the prompt.
    pub continues_message: bool,
    /// Number of calls in the conversation so far, for formats with numbered ids.
    pub n_past_calls: usize,
}

/// Parses one answer as it arrives. Holds back text that may be the start of a marker and the start of a
/// call until the call can be announced; never more than the answer itself.
#[derive(Debug)]
pub struct AnswerParser {
    scanner: Scanner,
    machine: Box<dyn Machine>,
    out: EventSink,
}

impl AnswerParser {
    /// Creates a parser at the start of an answer.
    pub fn new(format: &AnswerFormat, options: ParseOptions) -> Self {
        let tool_calls = format.tool_calls.filter(|_| options.tools.is_some());
        let tools = options.tools.unwrap_or_default();
        let is_harmony = format.reasoning == Some(ReasoningFormat::Harmony);
        let machine: Box<dyn Machine> = match (tool_calls, format.reasoning) {
            (Some(ToolCallFormat::Harmony), _) | (_, Some(ReasoningFormat::Harmony)) => {
                let tools = (tool_calls == Some(ToolCallFormat::Harmony)).then_some(tools);
                Box::new(Harmony::new(tools, is_harmony, options.continues_message))
            }
            (calls, reasoning) => {
                let rest = calls.map_or_else(|| Box::new(Plain) as _, |calls| calls.machine(tools));
                match reasoning {
                    Some(format) => Box::new(ReasoningSpan::new(format, options.in_reasoning, rest)),
                    None => rest,
                }
            }
        };
        let control = format.control.iter().map(|(_, text)| *text).collect();
        let ids = CallIds::new(tool_calls, options.n_past_calls);
        let out = EventSink::new(options.only_first_call, ids);
        Self { scanner: Scanner::new(control), machine, out }
    }

    /// Parses plain text, in which the model's control tokens are not markers.
    pub fn push_text(&mut self, text: &str) -> Vec<AnswerEvent> {
        self.scanner.text(text, &mut *self.machine, &mut self.out);
        self.out.take()
    }

    /// Parses a control token, given by its spelling.
    pub fn push_control(&mut self, token: &str) -> Vec<AnswerEvent> {
        self.scanner.control(token, &mut *self.machine, &mut self.out);
        self.out.take()
    }

    /// Whether the next text is reasoning, if that is known.
    pub fn in_reasoning(&self) -> bool {
        self.machine.in_reasoning()
    }

    /// Ends the answer and returns the remaining events.
    pub fn finish(&mut self) -> Vec<AnswerEvent> {
        self.scanner.end(&mut *self.machine, &mut self.out);
        self.out.end();
        self.out.take()
    }
}

/// State machine for text without calls and reasoning.
#[derive(Debug)]
struct Plain;

impl Machine for Plain {
    fn markers(&self) -> &'static [&'static str] {
        &[]
    }

    fn marker(&mut self, _: &'static str, _: &mut EventSink) {}

    fn char(&mut self, c: char, out: &mut EventSink) -> Step {
        out.content(c);
        Step::Taken
    }

    fn end(&mut self, _: &mut EventSink) {}
}
