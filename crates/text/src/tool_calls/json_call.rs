//! A call as a JSON object: `{"name": …, "arguments": {…}}`, with its keys in any order. Arguments are
//! streamed as the model writes them. Does not know the text around the object.

use super::events::EventSink;
use super::json_text::{Decoded, StringDecoder, Value, ValueSpan};
use super::schemas::ToolSchemas;

/// Effect of a character.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CallStep {
    /// The object continues.
    Goes,
    /// The call ended with this character.
    Ended,
    /// The text is not a call (any more): it is content.
    GivenBack(String),
}

/// Parses one call.
#[derive(Debug)]
pub(super) struct JsonCall {
    state: State,
    /// All text until the call has started, returned as content if it does not.
    raw: String,
    /// Number of objects around the one with the name (`{"type": "function", "function": {"name": …}}`).
    n_around: u32,
    name: Option<String>,
    /// Arguments that arrived before the name.
    early: String,
    has_arguments: bool,
    has_begun: bool,
    /// Whether no marker precedes the object: it is a call only with the name of a known tool and
    /// arguments.
    is_unmarked: bool,
}

#[derive(Debug)]
enum State {
    Open,
    /// Before a key; the object may also end here.
    Key,
    InKey(String, StringDecoder),
    Colon(Key),
    BeforeValue(Key),
    InName(String, StringDecoder),
    Arguments(ValueSpan),
    /// Arguments as a string that contains JSON.
    ArgumentText(StringDecoder),
    /// Arguments of another type: `null` means none.
    ArgumentScalar(String, ValueSpan),
    Other(ValueSpan),
    Comma,
}

#[derive(Debug, Clone, Copy)]
enum Key {
    Name,
    Arguments,
    Function,
    Other,
}

impl Key {
    fn of(text: &str) -> Self {
        match text {
            "name" => Self::Name,
            "arguments" | "parameters" => Self::Arguments,
            "function" | "tool_call" => Self::Function,
            _ => Self::Other,
        }
    }
}

impl JsonCall {
    /// Creates a parser. `before` is the marker before the object, returned with its text if it is not a
    /// call.
    pub(super) fn new(before: String, is_unmarked: bool) -> Self {
        Self {
            state: State::Open,
            raw: before,
            n_around: 0,
            name: None,
            early: String::new(),
            has_arguments: false,
            has_begun: false,
            is_unmarked,
        }
    }

    /// Whether the position is inside a string, where markers are text.
    pub(super) fn in_string(&self) -> bool {
        match &self.state {
            State::InKey(..) | State::InName(..) | State::ArgumentText(_) => true,
            State::Arguments(span) | State::ArgumentScalar(_, span) | State::Other(span) => span.in_string(),
            State::Open | State::Key | State::Colon(_) | State::BeforeValue(_) | State::Comma => false,
        }
    }

    /// Whether the call has been announced.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Processes the next character.
    pub(super) fn take(&mut self, c: char, tools: &ToolSchemas, out: &mut EventSink) -> CallStep {
        if !self.has_begun {
            self.raw.push(c);
        }
        let step = self.step(c, tools, out);
        match step {
            Some(true) => CallStep::Goes,
            Some(false) => CallStep::Ended,
            None if self.has_begun => {
                out.end_call();
                // The call had already started, so this character is not in `raw`.
                CallStep::GivenBack(c.into())
            }
            None => CallStep::GivenBack(std::mem::take(&mut self.raw)),
        }
    }

    /// Ends the input inside of the object. Returns the text that is content.
    pub(super) fn cut(&mut self, out: &mut EventSink) -> String {
        if self.has_begun {
            out.cut_call();
        }
        std::mem::take(&mut self.raw)
    }

    /// Whether the object continues; `None`: it cannot be a call.
    fn step(&mut self, c: char, tools: &ToolSchemas, out: &mut EventSink) -> Option<bool> {
        match &mut self.state {
            State::Open | State::Key | State::Colon(_) | State::BeforeValue(_) | State::Comma
                if c.is_whitespace() => {}
            State::Open => {
                (c == '{').then_some(())?;
                self.state = State::Key;
            }
            State::Key => match c {
                '"' => self.state = State::InKey(String::new(), StringDecoder::default()),
                '}' => return self.close(out),
                _ => return None,
            },
            State::InKey(text, decoder) => match decoder.take(c) {
                Decoded::Char(c) => text.push(c),
                Decoded::Nothing => {}
                Decoded::End => {
                    let key = Key::of(text);
                    let is_known = !matches!(key, Key::Other) || matches!(text.as_str(), "type" | "id");
                    (is_known || !self.is_unmarked).then_some(())?;
                    self.state = State::Colon(key);
                }
            },
            State::Colon(key) => {
                (c == ':').then_some(())?;
                self.state = State::BeforeValue(*key);
            }
            State::BeforeValue(key) => {
                let key = *key;
                return self.begin_value(key, c, out);
            }
            State::InName(text, decoder) => match decoder.take(c) {
                Decoded::Char(c) => text.push(c),
                Decoded::Nothing => {}
                Decoded::End => {
                    let name = std::mem::take(text);
                    let is_plausible = if self.is_unmarked { tools.has(&name) } else { !name.is_empty() };
                    is_plausible.then_some(())?;
                    self.name = Some(name);
                    self.state = State::Comma;
                    if self.has_arguments {
                        self.begin(out);
                    }
                }
            },
            State::Comma => match c {
                ',' => self.state = State::Key,
                '}' => return self.close(out),
                _ => return None,
            },
            State::Other(span) => match span.take(c) {
                Value::Goes => {}
                Value::Ended => self.state = State::Comma,
                Value::EndedBefore => return self.after_scalar(c, tools, out),
            },
            State::Arguments(_) | State::ArgumentText(_) | State::ArgumentScalar(..) => {
                return self.take_argument(c, tools, out);
            }
        }
        Some(true)
    }

    fn begin_value(&mut self, key: Key, c: char, out: &mut EventSink) -> Option<bool> {
        match (key, c) {
            (_, '}' | ']' | ',' | ':') => return None,
            (Key::Name, '"') if self.name.is_none() => {
                self.state = State::InName(String::new(), StringDecoder::default());
            }
            (Key::Name, _) => return None,
            (Key::Function, '{') => {
                self.n_around += 1;
                self.state = State::Key;
            }
            (Key::Arguments, _) if !self.has_arguments => {
                self.has_arguments = true;
                if self.name.is_some() {
                    self.begin(out);
                }
                let mut span = ValueSpan::default();
                span.take(c);
                self.state = match c {
                    '"' => State::ArgumentText(StringDecoder::default()),
                    '{' | '[' => {
                        self.argument(c, out);
                        State::Arguments(span)
                    }
                    _ => State::ArgumentScalar(c.into(), span),
                };
            }
            _ => {
                let mut span = ValueSpan::default();
                span.take(c);
                self.state = State::Other(span);
            }
        }
        Some(true)
    }

    fn take_argument(&mut self, c: char, tools: &ToolSchemas, out: &mut EventSink) -> Option<bool> {
        match &mut self.state {
            State::Arguments(span) => {
                let value = span.take(c);
                self.argument(c, out);
                if value != Value::Goes {
                    self.state = State::Comma;
                }
            }
            State::ArgumentText(decoder) => match decoder.take(c) {
                Decoded::Char(c) => self.argument(c, out),
                Decoded::Nothing => {}
                Decoded::End => self.state = State::Comma,
            },
            State::ArgumentScalar(text, span) => match span.take(c) {
                Value::Goes | Value::Ended => text.push(c),
                Value::EndedBefore => {
                    let text = std::mem::take(text);
                    let text = if text == "null" { "" } else { &text };
                    text.chars().for_each(|c| self.argument(c, out));
                    return self.after_scalar(c, tools, out);
                }
            },
            _ => {}
        }
        Some(true)
    }

    fn after_scalar(&mut self, c: char, tools: &ToolSchemas, out: &mut EventSink) -> Option<bool> {
        self.state = State::Comma;
        self.step(c, tools, out)
    }

    fn argument(&mut self, c: char, out: &mut EventSink) {
        if self.has_begun { out.argument(c) } else { self.early.push(c) }
    }

    fn begin(&mut self, out: &mut EventSink) {
        self.has_begun = true;
        self.raw.clear();
        out.begin_call(self.name.as_deref().unwrap_or_default());
        out.argument_text(&std::mem::take(&mut self.early));
    }

    fn close(&mut self, out: &mut EventSink) -> Option<bool> {
        if self.n_around > 0 {
            self.n_around -= 1;
            self.state = State::Comma;
            return Some(true);
        }
        if !self.has_begun {
            (self.name.is_some() && !self.is_unmarked).then_some(())?;
            self.begin(out);
        }
        out.end_call();
        Some(false)
    }
}
