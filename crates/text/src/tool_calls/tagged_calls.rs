//! The formats in which tags stand around the function and each parameter: Qwen3-Coder's and its relatives'. Does not know
//! the others.

use std::sync::Arc;

use super::argument_writer::ArgumentWriter;
use super::events::EventSink;
use super::is_tool_name;
use super::scanner::{Machine, Step};
use super::schemas::ToolSchemas;

/// How a family spells it.
#[derive(Debug)]
pub(super) struct TagSpelling {
    /// Outside of calls: before calls, and before a function, which may come without.
    in_text: &'static [&'static str],
    /// After calls have begun: before a function, after calls.
    in_calls: &'static [&'static str],
    /// In a function: before a parameter, after the function, after calls.
    in_function: &'static [&'static str],
    /// In a value: after the parameter, and before the next or after the function where that is missing.
    in_value: &'static [&'static str],
    open: &'static str,
    function: &'static str,
    function_end: &'static str,
    parameter: &'static str,
    parameter_end: &'static str,
}

impl TagSpelling {
    pub(super) const QWEN3_CODER: Self = Self {
        in_text: &["<tool_call>", "<function="],
        in_calls: &["<tool_call>", "<function=", "</tool_call>"],
        in_function: &["<parameter=", "</function>", "</tool_call>"],
        in_value: &["</parameter>", "<parameter=", "</function>"],
        open: "<tool_call>",
        function: "<function=",
        function_end: "</function>",
        parameter: "<parameter=",
        parameter_end: "</parameter>",
    };
    pub(super) const SEED_OSS: Self = Self {
        in_text: &["<seed:tool_call>", "<function="],
        in_calls: &["<seed:tool_call>", "<function=", "</seed:tool_call>"],
        in_function: &["<parameter=", "</function>", "</seed:tool_call>"],
        open: "<seed:tool_call>",
        ..Self::QWEN3_CODER
    };
    pub(super) const MINIMAX_M2: Self = Self {
        in_text: &["<minimax:tool_call>"],
        in_calls: &["<minimax:tool_call>", "<invoke name=", "</minimax:tool_call>"],
        in_function: &["<parameter name=", "</invoke>", "</minimax:tool_call>"],
        in_value: &["</parameter>", "<parameter name=", "</invoke>"],
        open: "<minimax:tool_call>",
        function: "<invoke name=",
        function_end: "</invoke>",
        parameter: "<parameter name=",
        parameter_end: "</parameter>",
    };

    /// All markers.
    pub(super) fn markers(&self) -> Vec<&'static str> {
        [self.in_calls, self.in_function, self.in_value].concat()
    }
}

/// Reads an answer with such calls.
#[derive(Debug)]
pub(super) struct TaggedCalls {
    spelling: &'static TagSpelling,
    tools: Arc<ToolSchemas>,
    state: State,
    /// Open from the function's name on.
    arguments: Option<ArgumentWriter>,
}

#[derive(Debug)]
enum State {
    Text,
    /// From the marker before calls on, with its text.
    Opened(String),
    /// In a function's name: all text from the marker on, and the name.
    Name(String, String),
    Function,
    ParameterName(String),
    Value,
    /// After a function, before the end of the calls.
    Calls,
}

impl TaggedCalls {
    pub(super) fn new(spelling: &'static TagSpelling, tools: Arc<ToolSchemas>) -> Self {
        Self { spelling, tools, state: State::Text, arguments: None }
    }

    fn in_json_string(&self) -> bool {
        self.arguments.as_ref().is_some_and(ArgumentWriter::in_json_string)
    }

    fn begin_parameter(&mut self, name: &str, out: &mut EventSink) {
        if let Some(arguments) = &mut self.arguments {
            arguments.begin(unquoted(name), out);
            self.state = State::Value;
        }
    }
}

fn unquoted(name: &str) -> &str {
    name.trim().trim_matches(['"', '\''])
}

impl Machine for TaggedCalls {
    fn markers(&self) -> &'static [&'static str] {
        match &self.state {
            State::Text => self.spelling.in_text,
            State::Opened(_) | State::Calls => self.spelling.in_calls,
            State::Name(..) | State::ParameterName(_) => &[],
            State::Function => self.spelling.in_function,
            State::Value if self.in_json_string() => &[],
            State::Value => self.spelling.in_value,
        }
    }

    fn control_markers(&self) -> &'static [&'static str] {
        if matches!(self.state, State::Value) { self.spelling.in_value } else { self.markers() }
    }

    fn marker(&mut self, marker: &'static str, out: &mut EventSink) {
        let spelling = self.spelling;
        let opened = match std::mem::replace(&mut self.state, State::Text) {
            State::Opened(text) => text,
            _ => String::new(),
        };
        if marker == spelling.open {
            out.content_text(&opened);
            self.state = State::Opened(marker.to_owned());
        } else if marker == spelling.function {
            self.state = State::Name(opened + marker, String::new());
        } else if marker == spelling.parameter {
            self.state = State::ParameterName(String::new());
        } else if marker == spelling.parameter_end {
            if let Some(arguments) = &mut self.arguments {
                arguments.end_value(out);
            }
            self.state = State::Function;
        } else {
            // The end of the function, or of the calls, which ends the function too.
            ArgumentWriter::end_call(&mut self.arguments, out);
            if marker == spelling.function_end {
                self.state = State::Calls;
            } else if !opened.is_empty() {
                out.content_text(&opened);
                out.content_text(marker);
            }
        }
    }

    fn char(&mut self, c: char, out: &mut EventSink) -> Step {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Text => out.content(c),
            State::Opened(mut text) if c.is_whitespace() => {
                text.push(c);
                self.state = State::Opened(text);
            }
            State::Opened(text) => {
                out.content_text(&text);
                return Step::Again;
            }
            State::Name(mut text, mut name) => {
                text.push(c);
                if c != '>' {
                    name.push(c);
                    if name.len() > super::MAX_NAME_BYTES + 4 {
                        out.content_text(&text);
                    } else {
                        self.state = State::Name(text, name);
                    }
                } else if is_tool_name(unquoted(&name)) {
                    let tool = unquoted(&name).to_owned();
                    out.begin_call(&tool);
                    self.arguments = Some(ArgumentWriter::new(self.tools.clone(), tool, true));
                    self.state = State::Function;
                } else {
                    out.content_text(&text);
                }
            }
            State::Function => {
                out.content(c);
                self.state = State::Function;
            }
            State::ParameterName(name) if c == '>' => self.begin_parameter(&name, out),
            State::ParameterName(mut name) => {
                name.push(c);
                self.state = State::ParameterName(name);
            }
            State::Value => {
                if let Some(arguments) = &mut self.arguments {
                    arguments.char(c, out);
                }
                self.state = State::Value;
            }
            State::Calls if c.is_whitespace() => {
                out.content(c);
                self.state = State::Calls;
            }
            State::Calls => return Step::Again,
        }
        Step::Taken
    }

    fn end(&mut self, out: &mut EventSink) {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Opened(text) | State::Name(text, _) => out.content_text(&text),
            State::Text | State::Function | State::ParameterName(_) | State::Value | State::Calls => {}
        }
        if let Some(mut arguments) = self.arguments.take() {
            arguments.cut(out);
        }
    }
}
