//! GLM's format: `<tool_call>name`, then `<arg_key>…</arg_key>` and `<arg_value>…</arg_value>` for each argument. Does not
//! know the others.

use std::sync::Arc;

use super::argument_writer::ArgumentWriter;
use super::events::EventSink;
use super::scanner::{Machine, Step};
use super::schemas::ToolSchemas;
use super::{is_name_char, is_tool_name};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const KEY: &str = "<arg_key>";
const KEY_END: &str = "</arg_key>";
const VALUE: &str = "<arg_value>";
const VALUE_END: &str = "</arg_value>";

/// Reads an answer with such calls.
#[derive(Debug)]
pub(super) struct GlmCalls {
    tools: Arc<ToolSchemas>,
    state: State,
    /// Open from the first argument on.
    arguments: Option<ArgumentWriter>,
}

#[derive(Debug)]
enum State {
    Text,
    /// From the marker on, with its text.
    Name(String),
    Arguments,
    Key(String),
    /// After a key, before its value.
    BetweenKeyAndValue(String),
    Value,
}

impl GlmCalls {
    /// All markers.
    pub(super) const MARKERS: &'static [&'static str] = &[OPEN, CLOSE, KEY, KEY_END, VALUE, VALUE_END];

    pub(super) fn new(tools: Arc<ToolSchemas>) -> Self {
        Self { tools, state: State::Text, arguments: None }
    }

    /// Begins the call that `text` names; gives the text back where it names none.
    fn begin(&mut self, text: &str, out: &mut EventSink) -> bool {
        let name = text.trim_start_matches(OPEN).trim();
        if !is_tool_name(name) {
            out.content_text(text);
            return false;
        }
        out.begin_call(name);
        self.arguments = Some(ArgumentWriter::new(self.tools.clone(), name.to_owned(), false));
        true
    }

    fn in_json_string(&self) -> bool {
        self.arguments.as_ref().is_some_and(ArgumentWriter::in_json_string)
    }
}

impl Machine for GlmCalls {
    fn markers(&self) -> &'static [&'static str] {
        match &self.state {
            State::Text => &[OPEN],
            State::Name(_) | State::Arguments => &[KEY, OPEN, CLOSE],
            State::Key(_) => &[KEY_END],
            State::BetweenKeyAndValue(_) => &[VALUE, KEY, CLOSE],
            State::Value if self.in_json_string() => &[],
            State::Value => &[VALUE_END],
        }
    }

    fn control_markers(&self) -> &'static [&'static str] {
        if matches!(self.state, State::Value) { &[VALUE_END] } else { self.markers() }
    }

    fn marker(&mut self, marker: &'static str, out: &mut EventSink) {
        let state = std::mem::replace(&mut self.state, State::Text);
        if let State::Name(text) = &state {
            let begun = marker != OPEN && self.begin(text, out);
            if marker == OPEN {
                out.content_text(text);
            } else if !begun {
                return out.content_text(marker);
            }
        }
        match (marker, state) {
            (KEY, _) => self.state = State::Key(String::new()),
            (KEY_END, State::Key(key)) => self.state = State::BetweenKeyAndValue(key),
            (VALUE, State::BetweenKeyAndValue(key)) => {
                if let Some(arguments) = &mut self.arguments {
                    arguments.begin(key.trim(), out);
                }
                self.state = State::Value;
            }
            (VALUE_END, _) => {
                if let Some(arguments) = &mut self.arguments {
                    arguments.end_value(out);
                }
                self.state = State::Arguments;
            }
            (OPEN, _) => {
                ArgumentWriter::end_call(&mut self.arguments, out);
                self.state = State::Name(OPEN.to_owned());
            }
            _ => ArgumentWriter::end_call(&mut self.arguments, out),
        }
    }

    fn char(&mut self, c: char, out: &mut EventSink) -> Step {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Text => out.content(c),
            State::Name(mut text) => {
                let may_name = is_name_char(c) || c.is_whitespace();
                text.push(c);
                if may_name && text.len() <= OPEN.len() + super::MAX_NAME_BYTES + 4 {
                    self.state = State::Name(text);
                } else {
                    out.content_text(&text);
                }
            }
            State::Key(mut key) => {
                key.push(c);
                self.state = State::Key(key);
            }
            State::Value => {
                if let Some(arguments) = &mut self.arguments {
                    arguments.char(c, out);
                }
                self.state = State::Value;
            }
            // What stands between the tags is blank, or the user's.
            state @ (State::Arguments | State::BetweenKeyAndValue(_)) => {
                out.content(c);
                self.state = state;
            }
        }
        Step::Taken
    }

    fn end(&mut self, out: &mut EventSink) {
        if let State::Name(text) = std::mem::replace(&mut self.state, State::Text) {
            out.content_text(&text);
        }
        if let Some(mut arguments) = self.arguments.take() {
            arguments.cut(out);
        }
    }
}
