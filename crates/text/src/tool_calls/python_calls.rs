//! Calls in Python's syntax: `[name(a='x', b=1), other()]`. Each argument is emitted as JSON when it is
//! complete. Does not know the other formats.

use std::sync::Arc;

use super::events::EventSink;
use super::json_text::escape;
use super::python_literal;
use super::scanner::{Machine, Step};
use super::schemas::ToolSchemas;

/// Spelling of a family.
#[derive(Debug)]
pub(super) struct PythonSpelling {
    /// Marker before the calls; if it is empty, the calls must be the whole answer.
    open: &'static str,
    close: &'static str,
    in_text: &'static [&'static str],
    in_calls: &'static [&'static str],
    /// Whether calls in brackets may start an answer without a marker.
    unmarked: bool,
    /// Whether the calls between the markers have no brackets, and each has a line.
    in_lines: bool,
}

impl PythonSpelling {
    /// Format of Llama 3.2, Llama 4 and ToolACE; Llama 4 may put markers around the calls.
    pub(super) const LLAMA: Self = Self {
        open: "<|python_start|>",
        close: "<|python_end|>",
        in_text: &["<|python_start|>"],
        in_calls: &["<|python_start|>", "<|python_end|>"],
        unmarked: true,
        in_lines: false,
    };
    pub(super) const OLMO3: Self = Self {
        open: "<function_calls>",
        close: "</function_calls>",
        in_text: &["<function_calls>"],
        in_calls: &["<function_calls>", "</function_calls>"],
        unmarked: false,
        in_lines: true,
    };

    /// All markers of the format.
    pub(super) fn markers(&self) -> Vec<&'static str> {
        self.in_calls.to_vec()
    }
}

/// Parses an answer with such calls.
#[derive(Debug)]
pub(super) struct PythonCalls {
    spelling: &'static PythonSpelling,
    tools: Arc<ToolSchemas>,
    state: State,
    in_brackets: bool,
    n_arguments: usize,
}

#[derive(Debug)]
enum State {
    /// At the start of an answer that may be calls without a marker.
    Start,
    Text,
    /// Before a name: the text since the last content.
    Before(String),
    /// In a name: the text since the last content, and the name.
    Name(String, String),
    Argument(Argument),
    /// After a call.
    After,
}

/// Text of an argument, and the position in it.
#[derive(Debug, Default)]
struct Argument {
    name: Option<String>,
    text: String,
    quote: Quote,
    depth: u32,
}

/// Position relative to strings.
#[derive(Debug, Clone, Copy, Default)]
enum Quote {
    #[default]
    Outside,
    /// After the first quotation mark of a string.
    Opened(char),
    /// After two quotation marks: an empty string, unless a third follows.
    Empty(char),
    Inside {
        mark: char,
        is_escaped: bool,
        /// Number of consecutive quotation marks that close the string, and number of them that have arrived.
        n_closing: u8,
        n_closed: u8,
    },
}

impl Quote {
    fn inside(mark: char, n_closing: u8) -> Self {
        Self::Inside { mark, is_escaped: false, n_closing, n_closed: 0 }
    }

    fn is_outside(self) -> bool {
        matches!(self, Self::Outside | Self::Empty(_))
    }

    /// The position after a character that does not start a string here.
    fn after(self, c: char) -> Self {
        match self {
            Self::Outside => Self::Outside,
            Self::Opened(mark) if c == mark => Self::Empty(mark),
            Self::Opened(mark) => Self::inside(mark, 1).after(c),
            Self::Empty(mark) if c == mark => Self::inside(mark, 3),
            Self::Empty(_) => Self::Outside,
            Self::Inside { mark, is_escaped, n_closing, n_closed } => {
                let n_closed = if c == mark && !is_escaped { n_closed + 1 } else { 0 };
                if n_closed == n_closing {
                    return Self::Outside;
                }
                Self::Inside { mark, is_escaped: c == '\\' && !is_escaped, n_closing, n_closed }
            }
        }
    }
}

impl PythonCalls {
    pub(super) fn new(spelling: &'static PythonSpelling, tools: Arc<ToolSchemas>) -> Self {
        let state = if spelling.unmarked { State::Start } else { State::Text };
        Self { spelling, tools, state, in_brackets: false, n_arguments: 0 }
    }

    fn give_back(&mut self, text: &str, out: &mut EventSink) -> Step {
        out.content_text(text);
        self.state = State::Text;
        Step::Again
    }

    fn before(&mut self, mut text: String, c: char, out: &mut EventSink) -> Step {
        match c {
            '[' if !self.in_brackets => self.in_brackets = true,
            _ if c.is_whitespace() => {}
            _ if (self.in_brackets || self.spelling.in_lines) && (c.is_alphabetic() || c == '_') => {
                text.push(c);
                self.state = State::Name(text, c.into());
                return Step::Taken;
            }
            _ => return self.give_back(&text, out),
        }
        text.push(c);
        self.state = State::Before(text);
        Step::Taken
    }

    fn name(&mut self, mut text: String, mut name: String, c: char, out: &mut EventSink) -> Step {
        if c == '(' && self.tools.has(&name) {
            out.begin_call(&name);
            self.n_arguments = 0;
            self.state = State::Argument(Argument::default());
        } else if c.is_alphanumeric() || matches!(c, '_' | '-' | '.') {
            text.push(c);
            name.push(c);
            self.state = State::Name(text, name);
        } else {
            return self.give_back(&text, out);
        }
        Step::Taken
    }

    fn argument(&mut self, mut argument: Argument, c: char, out: &mut EventSink) {
        let ends = argument.depth == 0 && argument.quote.is_outside() && matches!(c, ',' | ')');
        if !ends {
            argument.take(c);
            self.state = State::Argument(argument);
            return;
        }
        self.write(&argument, false, out);
        if c == ',' {
            self.state = State::Argument(Argument::default());
        } else {
            out.argument_text(if self.n_arguments == 0 { "{}" } else { "}" });
            out.end_call();
            self.state = State::After;
        }
    }

    /// Writes an argument; one without a name gets its index as the name. If the answer ended inside a
    /// string, the JSON stays open.
    fn write(&mut self, argument: &Argument, is_cut: bool, out: &mut EventSink) {
        let text = argument.text.trim();
        if text.is_empty() && argument.name.is_none() {
            return;
        }
        let number = self.n_arguments.to_string();
        out.argument_text(if self.n_arguments == 0 { "{" } else { ", " });
        self.n_arguments += 1;
        write_string(argument.name.as_deref().map_or(&number, str::trim), out);
        out.argument_text(": ");
        let cut =
            if is_cut && !argument.quote.is_outside() { python_literal::open_string(text) } else { None };
        match cut.or_else(|| python_literal::to_json(text)) {
            Some(json) => out.argument_text(&json),
            None => write_string(text, out),
        }
    }
}

impl Argument {
    fn take(&mut self, c: char) {
        let was_outside = self.quote.is_outside();
        self.quote = self.quote.after(c);
        if was_outside && self.quote.is_outside() {
            match c {
                '"' | '\'' => self.quote = Quote::Opened(c),
                '[' | '{' | '(' => self.depth += 1,
                ']' | '}' | ')' => self.depth = self.depth.saturating_sub(1),
                '=' if self.depth == 0 && self.name.is_none() => {
                    self.name = Some(std::mem::take(&mut self.text));
                    return;
                }
                _ => {}
            }
        }
        self.text.push(c);
    }
}

fn write_string(text: &str, out: &mut EventSink) {
    out.argument('"');
    text.chars().for_each(|c| escape(c, |c| out.argument(c)));
    out.argument('"');
}

impl Machine for PythonCalls {
    fn markers(&self) -> &'static [&'static str] {
        match &self.state {
            State::Start | State::Text => self.spelling.in_text,
            State::Before(_) | State::Name(..) | State::After => self.spelling.in_calls,
            State::Argument(argument) if argument.quote.is_outside() => self.spelling.in_calls,
            State::Argument(_) => &[],
        }
    }

    fn control_markers(&self) -> &'static [&'static str] {
        if matches!(self.state, State::Argument(_)) { self.spelling.in_calls } else { self.markers() }
    }

    fn marker(&mut self, marker: &'static str, out: &mut EventSink) {
        let opens = marker == self.spelling.open;
        match std::mem::replace(&mut self.state, State::Text) {
            State::Before(text) | State::Name(text, _) => {
                out.content_text(&text);
                // With one call a line, blank lines may precede the end.
                if marker == self.spelling.close && !text.is_empty() {
                    out.content_text(marker);
                }
            }
            State::Argument(argument) => {
                self.write(&argument, true, out);
                out.cut_call();
            }
            State::Start | State::Text | State::After => {}
        }
        self.in_brackets = false;
        if opens {
            self.state = State::Before(marker.to_owned());
        }
    }

    fn char(&mut self, c: char, out: &mut EventSink) -> Step {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Start if c.is_whitespace() => {
                out.content(c);
                self.state = State::Start;
            }
            State::Start if c == '[' => return self.before(String::new(), c, out),
            State::Start => return Step::Again,
            State::Text => out.content(c),
            State::Before(text) => return self.before(text, c, out),
            State::Name(text, name) => return self.name(text, name, c, out),
            State::Argument(argument) => self.argument(argument, c, out),
            State::After => match c {
                ',' if self.in_brackets => self.state = State::Before(String::new()),
                ']' if self.in_brackets => {
                    self.in_brackets = false;
                    self.state = State::After;
                }
                _ if c.is_whitespace() => {
                    out.content(c);
                    self.state = State::After;
                }
                _ if self.spelling.in_lines => return self.before(String::new(), c, out),
                _ => return Step::Again,
            },
        }
        Step::Taken
    }

    fn end(&mut self, out: &mut EventSink) {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Before(text) | State::Name(text, _) => out.content_text(&text),
            State::Argument(argument) => self.write(&argument, true, out),
            State::Start | State::Text | State::After => {}
        }
    }
}
