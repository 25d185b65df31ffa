//! GLM's format: `<tool_call>name`, then `<arg_key>…</arg_key>` and `<arg_value>…</arg_value>` for each
//! argument. A tag inside of a string value ends it only if a valid continuation of the call follows. Does
//! not know the other formats.

use std::sync::Arc;

use super::argument_writer::ArgumentWriter;
use super::events::EventSink;
use super::quoted_call::{QuoteSpelling, QuotedCall};
use super::scanner::{Machine, Step};
use super::schemas::ToolSchemas;
use super::{MAX_HELD_BYTES, is_name_char, is_tool_name};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const KEY: &str = "<arg_key>";
const KEY_END: &str = "</arg_key>";
const VALUE: &str = "<arg_value>";
const VALUE_END: &str = "</arg_value>";

const QUOTE: QuoteSpelling = QuoteSpelling { open: OPEN, name_end: "", argument: KEY, close: CLOSE };

/// Parses an answer with such calls.
#[derive(Debug)]
pub(super) struct GlmCalls {
    tools: Arc<ToolSchemas>,
    state: State,
    /// Writer of the open call's arguments, from the first one on.
    arguments: Option<ArgumentWriter>,
    /// Quoted call inside the open value.
    quoted: QuotedCall,
}

#[derive(Debug)]
enum State {
    Text,
    /// Text since the marker, which it includes.
    Name(String),
    Arguments,
    Key(String),
    /// After a key, before its value.
    BetweenKeyAndValue(String),
    Value,
    /// A tag after a string value, with white space: it belongs to the value unless the call continues.
    Held(String),
    /// A held tag and the text of a key after it.
    HeldKey(String, String),
}

impl GlmCalls {
    /// All markers of the format.
    pub(super) const MARKERS: &'static [&'static str] = &[OPEN, CLOSE, KEY, KEY_END, VALUE, VALUE_END];

    pub(super) fn new(tools: Arc<ToolSchemas>) -> Self {
        Self { tools, state: State::Text, arguments: None, quoted: QuotedCall::new(&QUOTE) }
    }

    /// Starts the call named in `text`; returns false and emits the text as content if it is not a valid
    /// name.
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

    fn value_text(&mut self, text: &str, out: &mut EventSink) {
        let Some(arguments) = &mut self.arguments else { return };
        for c in text.chars() {
            self.quoted.take(c);
            arguments.char(c, out);
        }
    }

    fn end_value(&mut self, out: &mut EventSink) {
        if let Some(arguments) = &mut self.arguments {
            arguments.end_value(out);
        }
    }

    /// Adds the held text to the value.
    fn give_back(&mut self, held: &str, out: &mut EventSink) -> Step {
        self.value_text(held, out);
        self.state = State::Value;
        Step::Again
    }

    /// Handles a marker that is not text.
    fn tag(&mut self, marker: &'static str, state: State, out: &mut EventSink) {
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
                self.quoted = QuotedCall::new(&QUOTE);
                self.state = State::Value;
            }
            (VALUE_END, _) => {
                self.end_value(out);
                self.state = State::Arguments;
            }
            (OPEN, _) => {
                ArgumentWriter::end_call(&mut self.arguments, out);
                self.state = State::Name(OPEN.to_owned());
            }
            _ => ArgumentWriter::end_call(&mut self.arguments, out),
        }
    }
}

impl Machine for GlmCalls {
    fn markers(&self) -> &'static [&'static str] {
        match &self.state {
            State::Text => &[OPEN],
            State::Name(_) | State::Arguments | State::Held(_) => &[KEY, OPEN, CLOSE],
            State::Key(_) | State::HeldKey(..) => &[KEY_END],
            State::BetweenKeyAndValue(_) => &[VALUE, KEY, CLOSE],
            State::Value if self.in_json_string() => &[],
            State::Value => &[VALUE_END],
        }
    }

    fn control_markers(&self) -> &'static [&'static str] {
        if matches!(self.state, State::Value) { &[VALUE_END] } else { self.markers() }
    }

    fn marker(&mut self, marker: &'static str, out: &mut EventSink) {
        let may_be_text = self.arguments.as_ref().is_some_and(ArgumentWriter::may_be_text);
        match std::mem::replace(&mut self.state, State::Text) {
            State::Value if may_be_text && self.quoted.holds(marker) => {
                self.value_text(marker, out);
                self.state = State::Value;
            }
            State::Value if may_be_text => self.state = State::Held(marker.to_owned()),
            State::Held(held) if marker == KEY => self.state = State::HeldKey(held + marker, String::new()),
            State::Held(_) => {
                self.end_value(out);
                self.tag(marker, State::Arguments, out);
            }
            State::HeldKey(held, key) => {
                if self.arguments.as_ref().is_some_and(|arguments| arguments.has(key.trim())) {
                    // A call never has the same argument twice.
                    self.value_text(&held, out);
                    self.value_text(marker, out);
                    self.state = State::Value;
                } else {
                    self.end_value(out);
                    self.state = State::BetweenKeyAndValue(key);
                }
            }
            state => self.tag(marker, state, out),
        }
    }

    fn control_marker(&mut self, marker: &'static str, out: &mut EventSink) {
        if matches!(self.state, State::Value) {
            self.state = State::Text;
            self.tag(marker, State::Value, out);
        } else {
            self.marker(marker, out);
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
                self.value_text(c.encode_utf8(&mut [0; 4]), out);
                self.state = State::Value;
            }
            State::Held(mut held) if c.is_whitespace() && held.len() < MAX_HELD_BYTES => {
                held.push(c);
                self.state = State::Held(held);
            }
            State::HeldKey(mut held, mut key) if held.len() < MAX_HELD_BYTES => {
                held.push(c);
                key.push(c);
                self.state = State::HeldKey(held, key);
            }
            State::Held(held) | State::HeldKey(held, _) => return self.give_back(&held, out),
            // Text between the tags is white space or content.
            state @ (State::Arguments | State::BetweenKeyAndValue(_)) => {
                out.content(c);
                self.state = state;
            }
        }
        Step::Taken
    }

    fn end(&mut self, out: &mut EventSink) {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Name(text) => out.content_text(&text),
            State::Held(_) | State::HeldKey(..) => self.end_value(out),
            _ => {}
        }
        if let Some(mut arguments) = self.arguments.take() {
            arguments.cut(out);
        }
    }
}
