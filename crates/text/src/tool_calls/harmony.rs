//! gpt-oss's format, in which an answer consists of messages on channels: `analysis` is reasoning, `final`
//! is content, and a message to `functions.NAME` is a call. Does not know the other formats.

use std::sync::Arc;

use super::events::EventSink;
use super::is_tool_name;
use super::scanner::{Machine, Step};
use super::schemas::ToolSchemas;

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const CONSTRAIN: &str = "<|constrain|>";
const MESSAGE: &str = "<|message|>";

/// Maximum bytes of a header.
const MAX_HEADER_BYTES: usize = 512;

/// Parses an answer on channels.
#[derive(Debug)]
pub(crate) struct Harmony {
    state: State,
    /// Tools of the request; without tools, messages to functions are content.
    tools: Option<Arc<ToolSchemas>>,
    /// Whether `analysis` is separated from the content.
    shows_reasoning: bool,
}

#[derive(Debug)]
enum State {
    /// The prompt ends with the role of the first message: only a recipient may follow.
    Role(String),
    /// Inside of a header, after a marker.
    Header(String),
    Body(Body),
    /// Between messages.
    Between,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Body {
    Content,
    Reasoning,
    Call,
}

impl Harmony {
    /// All markers of the format.
    pub(crate) const MARKERS: &'static [&'static str] =
        &[START, CHANNEL, CONSTRAIN, MESSAGE, "<|end|>", "<|call|>", "<|return|>"];

    /// Creates a parser at the start of an answer, or in the middle of a final message that it continues.
    pub(crate) fn new(tools: Option<Arc<ToolSchemas>>, shows_reasoning: bool, goes_on: bool) -> Self {
        let state = if goes_on { State::Body(Body::Content) } else { State::Role(String::new()) };
        Self { state, tools, shows_reasoning }
    }

    fn begin_body(&mut self, header: &str, out: &mut EventSink) {
        let words = || header.split_whitespace();
        let function = words().find_map(|word| word.strip_prefix("to=")).and_then(|to| self.function(to));
        // A marker in a header counts as surrounded by spaces.
        let is_analysis = words().any(|word| word == "analysis");
        let body = match function {
            Some(name) => {
                out.begin_call(name);
                Body::Call
            }
            _ if is_analysis && self.shows_reasoning => Body::Reasoning,
            _ => Body::Content,
        };
        if body != Body::Call {
            out.separate();
        }
        self.state = State::Body(body);
    }

    /// The function that a message to this recipient calls. Without the prefix `functions.` it must be one
    /// of the tools, which models also write after another word (`tools.NAME`, `functions:NAME`).
    fn function<'r>(&self, recipient: &'r str) -> Option<&'r str> {
        let tools = self.tools.as_ref()?;
        let name = recipient.strip_prefix("functions.").filter(|name| is_tool_name(name));
        let last = || recipient.rsplit(['.', ':', '/']).next().filter(|name| tools.has(name));
        name.or_else(last)
    }

    fn end_body(body: Body, out: &mut EventSink) {
        match body {
            Body::Call => out.end_call(),
            Body::Reasoning => out.end_reasoning(),
            Body::Content => {}
        }
    }
}

impl Machine for Harmony {
    fn markers(&self) -> &'static [&'static str] {
        Self::MARKERS
    }

    fn in_reasoning(&self) -> bool {
        matches!(self.state, State::Body(Body::Reasoning))
    }

    fn marker(&mut self, marker: &'static str, out: &mut EventSink) {
        let state = std::mem::replace(&mut self.state, State::Between);
        if let State::Body(body) = &state {
            Self::end_body(*body, out);
        }
        let header = match state {
            State::Role(text) | State::Header(text) if marker != START => text,
            _ => String::new(),
        };
        match marker {
            START | CHANNEL | CONSTRAIN => self.state = State::Header(header + " "),
            MESSAGE => self.begin_body(&header, out),
            _ => {}
        }
    }

    fn char(&mut self, c: char, out: &mut EventSink) -> Step {
        match &mut self.state {
            State::Role(text) => {
                text.push(c);
                let begun = text.trim_start();
                if !("to=".starts_with(begun) || begun.starts_with("to=")) || text.len() > MAX_HEADER_BYTES {
                    let text = std::mem::take(text);
                    out.content_text(&text);
                    self.state = State::Body(Body::Content);
                }
            }
            State::Header(text) => {
                text.push(c);
                if text.len() > MAX_HEADER_BYTES {
                    let text = std::mem::take(text);
                    out.content_text(&text);
                    self.state = State::Body(Body::Content);
                }
            }
            State::Body(Body::Content) => out.content(c),
            State::Body(Body::Reasoning) => out.reasoning(c),
            State::Body(Body::Call) => out.argument(c),
            State::Between if c.is_whitespace() => {}
            State::Between => {
                self.state = State::Body(Body::Content);
                return Step::Again;
            }
        }
        Step::Taken
    }

    fn end(&mut self, out: &mut EventSink) {
        match std::mem::replace(&mut self.state, State::Between) {
            // A call that ends with the answer's end token is complete.
            State::Body(body) => Self::end_body(body, out),
            State::Role(text) => out.content_text(&text),
            State::Header(_) | State::Between => {}
        }
    }
}
