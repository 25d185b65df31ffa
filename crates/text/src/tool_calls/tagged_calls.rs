//! The formats with tags around the function and each parameter, such as Qwen3-Coder's. A tag inside of a
//! string value ends it only if a valid continuation of the call follows. Does not know the other formats.

use std::sync::Arc;

use super::argument_writer::ArgumentWriter;
use super::events::EventSink;
use super::quoted_call::{QuoteSpelling, QuotedCall};
use super::scanner::{Machine, Step};
use super::schemas::ToolSchemas;
use super::{MAX_HELD_BYTES, MAX_NAME_BYTES, is_tool_name};

/// Spelling of a family.
#[derive(Debug)]
pub(super) struct TagSpelling {
    /// Markers outside of calls: before calls, and before a function, which may occur without the former.
    in_text: &'static [&'static str],
    /// Markers after calls have begun: before a function, after calls.
    in_calls: &'static [&'static str],
    /// Markers in a function: before a parameter, after the function, after calls.
    in_function: &'static [&'static str],
    /// Markers in a value: after the parameter; if that is missing, before the next one or after the
    /// function.
    in_value: &'static [&'static str],
    open: &'static str,
    parameter_end: &'static str,
    /// Tags before a function and a parameter, which also identify a quoted call.
    quote: QuoteSpelling,
    /// Whether a value has lines of its own, so that one line break at each end is dropped.
    trims_lines: bool,
}

impl TagSpelling {
    pub(super) const QWEN3_CODER: Self = Self {
        in_text: &["<tool_call>", "<function="],
        in_calls: &["<tool_call>", "<function=", "</tool_call>"],
        in_function: &["<parameter=", "</function>", "</tool_call>"],
        in_value: &["</parameter>", "<parameter=", "</function>"],
        open: "<tool_call>",
        parameter_end: "</parameter>",
        quote: QuoteSpelling {
            open: "<function=",
            name_end: ">",
            argument: "<parameter=",
            close: "</function>",
        },
        trims_lines: true,
    };
    pub(super) const SEED_OSS: Self = Self {
        in_text: &["<seed:tool_call>", "<function="],
        in_calls: &["<seed:tool_call>", "<function=", "</seed:tool_call>"],
        in_function: &["<parameter=", "</function>", "</seed:tool_call>"],
        open: "<seed:tool_call>",
        trims_lines: false,
        ..Self::QWEN3_CODER
    };
    pub(super) const MINIMAX_M2: Self = Self {
        in_text: &["<minimax:tool_call>"],
        in_calls: &["<minimax:tool_call>", "<invoke name=", "</minimax:tool_call>"],
        in_function: &["<parameter name=", "</invoke>", "</minimax:tool_call>"],
        in_value: &["</parameter>", "<parameter name=", "</invoke>"],
        open: "<minimax:tool_call>",
        parameter_end: "</parameter>",
        quote: QuoteSpelling {
            open: "<invoke name=",
            name_end: ">",
            argument: "<parameter name=",
            close: "</invoke>",
        },
        trims_lines: false,
    };

    /// All markers of the format.
    pub(super) fn markers(&self) -> Vec<&'static str> {
        [self.in_calls, self.in_function, self.in_value].concat()
    }
}

/// Parses an answer with such calls.
#[derive(Debug)]
pub(super) struct TaggedCalls {
    spelling: &'static TagSpelling,
    tools: Arc<ToolSchemas>,
    state: State,
    /// Writer of the open call's arguments, from the function's name on.
    arguments: Option<ArgumentWriter>,
    /// Quoted call inside the open value.
    quoted: QuotedCall,
}

#[derive(Debug)]
enum State {
    Text,
    /// Text since the marker before calls, which it includes.
    Opened(String),
    /// In a function's name: all text since the marker, and the name.
    Name(String, String),
    Function,
    ParameterName(String),
    Value,
    /// Text since a tag in a string value: it belongs to the value unless the call continues.
    Held(String, After),
    /// After a function, before the end of the calls.
    Calls,
}

/// Tag in a string value that may end it.
#[derive(Debug)]
enum After {
    /// The end of the parameter, and white space.
    Parameter,
    /// The start of a parameter, with its partial name, and whether the previous one was closed.
    ParameterName(String, bool),
    /// The end of the function without that of the parameter, and white space.
    Function,
}

impl TaggedCalls {
    pub(super) fn new(spelling: &'static TagSpelling, tools: Arc<ToolSchemas>) -> Self {
        Self {
            spelling,
            tools,
            state: State::Text,
            arguments: None,
            quoted: QuotedCall::new(&spelling.quote),
        }
    }

    fn in_json_string(&self) -> bool {
        self.arguments.as_ref().is_some_and(ArgumentWriter::in_json_string)
    }

    fn begin_parameter(&mut self, name: &str, out: &mut EventSink) {
        if let Some(arguments) = &mut self.arguments {
            arguments.begin(unquoted(name), out);
            self.quoted = QuotedCall::new(&self.spelling.quote);
            self.state = State::Value;
        }
    }

    fn end_value(&mut self, out: &mut EventSink) {
        if let Some(arguments) = &mut self.arguments {
            arguments.end_value(out);
        }
    }

    fn value_text(&mut self, text: &str, out: &mut EventSink) {
        let Some(arguments) = &mut self.arguments else { return };
        for c in text.chars() {
            self.quoted.take(c);
            arguments.char(c, out);
        }
    }

    /// Handles a marker in a string value, which may be part of it.
    fn marker_in_text(&mut self, marker: &'static str, out: &mut EventSink) {
        let spelling = self.spelling;
        let at_line_start = self.arguments.as_ref().is_some_and(ArgumentWriter::is_at_line_start);
        let after = if marker == spelling.parameter_end {
            After::Parameter
        } else if marker == spelling.quote.close {
            After::Function
        } else {
            After::ParameterName(String::new(), false)
        };
        let is_text = matches!(after, After::ParameterName(..)) && !at_line_start;
        if is_text || self.quoted.holds(marker) {
            self.value_text(marker, out);
            self.state = State::Value;
        } else {
            self.state = State::Held(marker.to_owned(), after);
        }
    }

    /// Handles a marker after held-back text: the value has ended, unless the next parameter's name is
    /// invalid.
    fn marker_after(&mut self, held: String, after: &After, marker: &'static str, out: &mut EventSink) {
        if matches!(after, After::Parameter) && marker == self.spelling.quote.argument {
            self.state = State::Held(held + marker, After::ParameterName(String::new(), true));
            return;
        }
        self.end_value(out);
        self.state = State::Function;
        if matches!(after, After::Function) {
            self.tag(self.spelling.quote.close, String::new(), out);
        }
        self.marker(marker, out);
    }

    /// Handles a character after held-back text.
    fn char_after(&mut self, mut held: String, after: After, c: char, out: &mut EventSink) -> Step {
        let goes_on = held.len() < MAX_HELD_BYTES;
        let after = match after {
            After::Parameter | After::Function if c.is_whitespace() && goes_on => after,
            After::ParameterName(name, is_closed) if c == '>' => {
                let arguments = self.arguments.as_ref();
                let name_of = unquoted(&name);
                let is_next = match is_closed {
                    true => !name_of.is_empty() && arguments.is_some_and(|arguments| !arguments.has(name_of)),
                    false => arguments.is_some_and(|arguments| arguments.expects(name_of)),
                };
                if is_next {
                    self.end_value(out);
                    self.begin_parameter(&name, out);
                    return Step::Taken;
                }
                return self.give_back(&held, out);
            }
            After::ParameterName(mut name, is_closed) if !matches!(c, '<' | '\n') && goes_on => {
                name.push(c);
                After::ParameterName(name, is_closed)
            }
            _ => return self.give_back(&held, out),
        };
        held.push(c);
        self.state = State::Held(held, after);
        Step::Taken
    }

    /// Adds the held-back text to the value.
    fn give_back(&mut self, held: &str, out: &mut EventSink) -> Step {
        self.value_text(held, out);
        self.state = State::Value;
        Step::Again
    }

    /// Handles a marker that is not text. `opened` is the text since the marker before calls.
    fn tag(&mut self, marker: &'static str, opened: String, out: &mut EventSink) {
        let spelling = self.spelling;
        if marker == spelling.open {
            out.content_text(&opened);
            self.state = State::Opened(marker.to_owned());
        } else if marker == spelling.quote.open {
            self.state = State::Name(opened + marker, String::new());
        } else if marker == spelling.quote.argument {
            self.state = State::ParameterName(String::new());
        } else if marker == spelling.parameter_end {
            self.end_value(out);
            self.state = State::Function;
        } else {
            // The end of the function, or of the calls, which ends the function too.
            ArgumentWriter::end_call(&mut self.arguments, out);
            if marker == spelling.quote.close {
                self.state = State::Calls;
            } else if !opened.is_empty() {
                out.content_text(&opened);
                out.content_text(marker);
            }
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
            State::Opened(_) | State::Calls | State::Held(_, After::Function) => self.spelling.in_calls,
            State::Name(..) | State::ParameterName(_) | State::Held(_, After::ParameterName(..)) => &[],
            State::Function | State::Held(_, After::Parameter) => self.spelling.in_function,
            State::Value if self.in_json_string() => &[],
            State::Value => self.spelling.in_value,
        }
    }

    fn control_markers(&self) -> &'static [&'static str] {
        if matches!(self.state, State::Value) { self.spelling.in_value } else { self.markers() }
    }

    fn marker(&mut self, marker: &'static str, out: &mut EventSink) {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Value if self.arguments.as_ref().is_some_and(ArgumentWriter::may_be_text) => {
                self.marker_in_text(marker, out);
            }
            State::Held(held, after) => self.marker_after(held, &after, marker, out),
            State::Opened(text) => self.tag(marker, text, out),
            _ => self.tag(marker, String::new(), out),
        }
    }

    fn control_marker(&mut self, marker: &'static str, out: &mut EventSink) {
        if matches!(self.state, State::Value) {
            self.state = State::Text;
            self.tag(marker, String::new(), out);
        } else {
            self.marker(marker, out);
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
                    if name.len() > MAX_NAME_BYTES + 4 {
                        out.content_text(&text);
                    } else {
                        self.state = State::Name(text, name);
                    }
                } else if is_tool_name(unquoted(&name)) {
                    let tool = unquoted(&name).to_owned();
                    out.begin_call(&tool);
                    let trims_lines = self.spelling.trims_lines;
                    self.arguments = Some(ArgumentWriter::new(self.tools.clone(), tool, trims_lines));
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
                self.value_text(c.encode_utf8(&mut [0; 4]), out);
                self.state = State::Value;
            }
            State::Held(held, after) => return self.char_after(held, after, c, out),
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
            State::Held(_, After::Parameter | After::ParameterName(_, true)) => self.end_value(out),
            State::Held(held, After::ParameterName(_, false)) => self.value_text(&held, out),
            State::Held(_, After::Function) => ArgumentWriter::end_call(&mut self.arguments, out),
            State::Text | State::Function | State::ParameterName(_) | State::Value | State::Calls => {}
        }
        if let Some(mut arguments) = self.arguments.take() {
            arguments.cut(out);
        }
    }
}
