//! The formats in which a call is a JSON object after a marker, alone or in a list, and Mistral's, in which
//! the name may precede the object: `[TOOL_CALLS]name[ARGS]{…}`. Does not know the other formats.

use std::sync::Arc;

use super::events::EventSink;
use super::json_call::{CallStep, JsonCall};
use super::json_text::{Value, ValueSpan};
use super::scanner::{Machine, Step};
use super::schemas::ToolSchemas;
use super::{is_name_char, is_tool_name};

const ARGS: &str = "[ARGS]";

/// Start of a code block, which may contain a call of a known tool.
const CODE: &str = "```json";
const CODE_END: &str = "```";

/// Markers around the name of a named call.
const NAMED: &[&str] = &["[TOOL_CALLS]", "[CALL_ID]", ARGS];

/// Spelling of a family.
#[derive(Debug)]
pub(super) struct JsonSpelling {
    /// Markers before calls; a marker that ends with `[` opens the list itself.
    opens: &'static [&'static str],
    /// Markers after calls, together with those before them.
    between: &'static [&'static str],
    /// Whether an object at the start of an answer may be a call without a marker.
    unmarked: bool,
    /// Whether a name may stand between the marker and the object.
    named: bool,
}

impl JsonSpelling {
    const fn new(opens: &'static [&'static str], between: &'static [&'static str]) -> Self {
        Self { opens, between, unmarked: false, named: false }
    }

    pub(super) const HERMES: Self = Self::new(&["<tool_call>"], &["<tool_call>", "</tool_call>"]);
    pub(super) const GRANITE: Self =
        Self::new(&["<|tool_call|>", "<tool_call>"], &["<|tool_call|>", "<tool_call>", "</tool_call>"]);
    pub(super) const GRANITE_20B: Self = Self::new(&["<function_call>"], &["<function_call>"]);
    pub(super) const JAMBA: Self = Self::new(&["<tool_calls>"], &["<tool_calls>", "</tool_calls>"]);
    pub(super) const PHI4: Self =
        Self::new(&["functools[", "<|tool_call|>"], &["functools[", "<|tool_call|>", "<|/tool_call|>"]);
    pub(super) const LLAMA3: Self =
        Self { unmarked: true, ..Self::new(&["<|python_tag|>"], &["<|python_tag|>"]) };
    /// Calls of models without a trained format, or instructed by the system text.
    pub(super) const GENERIC: Self = Self {
        unmarked: true,
        ..Self::new(&["<tool_call>", CODE], &["<tool_call>", "</tool_call>", CODE_END])
    };
    pub(super) const MISTRAL: Self = Self { named: true, ..Self::new(&["[TOOL_CALLS]"], &["[TOOL_CALLS]"]) };

    /// All markers of the format.
    pub(super) fn markers(&self) -> Vec<&'static str> {
        let named: &[&str] = if self.named { NAMED } else { &[] };
        [self.between, named].concat()
    }
}

/// Parses an answer with such calls.
#[derive(Debug)]
pub(super) struct JsonCalls {
    spelling: &'static JsonSpelling,
    tools: Arc<ToolSchemas>,
    state: State,
    in_list: bool,
}

#[derive(Debug)]
enum State {
    /// At the start of an answer that may be a call without a marker.
    Start,
    Text,
    /// Text that is not a call, between a call and the marker after it.
    Stray,
    /// Text since a marker, which it includes.
    Opened(String),
    Object(JsonCall, bool),
    /// In the name of a named call: all text since the marker, and the name.
    Name(String, String),
    /// After the name: all text since the marker, and the name.
    NameEnded(String, String),
    Arguments(ValueSpan),
    /// After a call: white space and separators since then.
    After(String, bool),
}

impl JsonCalls {
    pub(super) fn new(spelling: &'static JsonSpelling, tools: Arc<ToolSchemas>) -> Self {
        let state = if spelling.unmarked { State::Start } else { State::Text };
        Self { spelling, tools, state, in_list: false }
    }

    fn give_back(&mut self, text: &str, out: &mut EventSink) {
        out.content_text(text);
        self.state = State::Text;
        self.in_list = false;
    }

    fn object(&mut self, before: String, is_unmarked: bool, out: &mut EventSink) {
        let mut call = JsonCall::new(before, is_unmarked);
        call.take('{', &self.tools, out);
        self.state = State::Object(call, is_unmarked);
    }

    /// Processes a character after the marker and other text before a call.
    fn opened(&mut self, mut text: String, c: char, out: &mut EventSink) -> Step {
        match c {
            _ if c.is_whitespace() => {
                text.push(c);
                self.state = State::Opened(text);
            }
            '[' if !self.in_list => {
                self.in_list = true;
                text.push(c);
                self.state = State::Opened(text);
            }
            '{' => {
                // A list or a code block without a marker of calls.
                let is_unmarked = self.spelling.unmarked && (text.starts_with('[') || text.starts_with(CODE));
                self.object(text, is_unmarked, out);
            }
            ']' if self.in_list => {
                text.push(c);
                self.give_back(&text, out);
            }
            _ if self.spelling.named && is_name_char(c) => {
                text.push(c);
                self.state = State::Name(text, c.into());
            }
            _ => {
                self.give_back(&text, out);
                return Step::Again;
            }
        }
        Step::Taken
    }

    fn after(&mut self, mut text: String, is_unmarked: bool, c: char, out: &mut EventSink) -> Step {
        match c {
            '{' => {
                self.object(text, is_unmarked, out);
                return Step::Taken;
            }
            ']' if self.in_list => self.in_list = false,
            ',' if self.in_list => {}
            _ if c.is_whitespace() || matches!(c, ';' | ',') && text.trim().is_empty() => text.push(c),
            _ => {
                self.give_back(&text, out);
                self.state = State::Stray;
                return Step::Again;
            }
        }
        self.state = State::After(text, is_unmarked);
        Step::Taken
    }

    fn name(&mut self, mut text: String, mut name: String, c: char, out: &mut EventSink) -> Step {
        if is_name_char(c) && is_tool_name(&name) {
            text.push(c);
            name.push(c);
            self.state = State::Name(text, name);
            return Step::Taken;
        }
        self.state = State::NameEnded(text, name);
        self.before_arguments(c, out)
    }

    fn before_arguments(&mut self, c: char, out: &mut EventSink) -> Step {
        let State::NameEnded(mut text, name) = std::mem::replace(&mut self.state, State::Text) else {
            return Step::Again;
        };
        // Only an id with its own marker may stand between the name and the arguments.
        let is_short = text.len() < 4 * super::MAX_NAME_BYTES;
        let in_id = is_name_char(c) && is_short && text.contains("[CALL_ID]") && !text.contains(ARGS);
        if c == '{' {
            let id =
                text.split_once("[CALL_ID]").map(|(_, id)| id.split(ARGS).next().unwrap_or_default().trim());
            out.begin_call_with_id(&name, id);
            let mut span = ValueSpan::default();
            span.take(c);
            out.argument(c);
            self.state = State::Arguments(span);
        } else if c.is_whitespace() || in_id {
            text.push(c);
            self.state = State::NameEnded(text, name);
        } else {
            self.give_back(&text, out);
            return Step::Again;
        }
        Step::Taken
    }
}

impl Machine for JsonCalls {
    fn markers(&self) -> &'static [&'static str] {
        match &self.state {
            State::Start | State::Text => self.spelling.opens,
            State::Opened(_) | State::After(..) | State::Stray => self.spelling.between,
            State::Object(call, _) if !call.in_string() => self.spelling.between,
            State::Name(..) | State::NameEnded(..) => NAMED,
            State::Object(..) | State::Arguments(_) => &[],
        }
    }

    fn control_markers(&self) -> &'static [&'static str] {
        match &self.state {
            State::Object(..) | State::Arguments(_) => self.spelling.between,
            _ => self.markers(),
        }
    }

    fn marker(&mut self, marker: &'static str, out: &mut EventSink) {
        let opens = self.spelling.opens.contains(&marker);
        let not_a_call = match std::mem::replace(&mut self.state, State::Text) {
            State::Object(mut call, _) => call.cut(out),
            State::Name(text, name) | State::NameEnded(text, name) if !opens => {
                self.state = State::NameEnded(text + marker, name);
                return;
            }
            State::Opened(text) | State::Name(text, _) | State::NameEnded(text, _) => text,
            State::Start | State::Text | State::Stray | State::Arguments(_) | State::After(..) => {
                String::new()
            }
        };
        out.end_call();
        out.content_text(&not_a_call);
        self.in_list = marker.ends_with('[');
        if opens {
            self.state = State::Opened(marker.to_owned());
        } else if !not_a_call.is_empty() {
            out.content_text(marker);
        }
    }

    fn char(&mut self, c: char, out: &mut EventSink) -> Step {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Start if c.is_whitespace() => {
                out.content(c);
                self.state = State::Start;
            }
            State::Start if c == '{' => self.object(String::new(), true, out),
            State::Start if c == '[' && self.spelling.opens.contains(&CODE) => {
                return self.opened(String::new(), c, out);
            }
            State::Start => return Step::Again,
            State::Text => out.content(c),
            State::Stray => {
                out.content(c);
                self.state = State::Stray;
            }
            State::Opened(text) => return self.opened(text, c, out),
            State::After(text, is_unmarked) => return self.after(text, is_unmarked, c, out),
            State::Name(text, name) => return self.name(text, name, c, out),
            State::NameEnded(text, name) => {
                self.state = State::NameEnded(text, name);
                return self.before_arguments(c, out);
            }
            State::Object(mut call, is_unmarked) => match call.take(c, &self.tools, out) {
                CallStep::Goes => self.state = State::Object(call, is_unmarked),
                CallStep::Ended => self.state = State::After(String::new(), is_unmarked),
                CallStep::GivenBack(text) => {
                    self.give_back(&text, out);
                    self.state = if call.has_begun() { State::Stray } else { State::Text };
                }
            },
            State::Arguments(mut span) => {
                let value = span.take(c);
                out.argument(c);
                if value == Value::Goes {
                    self.state = State::Arguments(span);
                } else {
                    out.end_call();
                    self.state = State::After(String::new(), false);
                }
            }
        }
        Step::Taken
    }

    fn end(&mut self, out: &mut EventSink) {
        let text = match std::mem::replace(&mut self.state, State::Text) {
            State::Object(mut call, _) => call.cut(out),
            State::Opened(text) | State::Name(text, _) | State::NameEnded(text, _) => text,
            State::Start | State::Text | State::Stray | State::Arguments(_) | State::After(..) => {
                String::new()
            }
        };
        out.content_text(&text);
    }
}
