//! The formats in which control tokens stand around each call and between its name and its arguments:
//! DeepSeek's and Kimi K2's. Does not know the others.

use super::events::EventSink;
use super::is_tool_name;
use super::json_text::{Value, ValueSpan};
use super::scanner::{Machine, Step};

/// Longest name before the separator.
const MAX_HEADER_BYTES: usize = 256;

/// Spelling of a family.
#[derive(Debug)]
pub(super) struct SectionSpelling {
    /// Markers before all calls, and before each.
    opens: &'static [&'static str],
    /// Text between name and arguments.
    separator: &'static str,
    /// All markers of the format.
    all: &'static [&'static str],
    /// Text before each call.
    call_open: &'static str,
}

impl SectionSpelling {
    /// DeepSeek V3, R1 and V3.1.
    pub(super) const DEEPSEEK: Self = Self {
        opens: &["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"],
        separator: "<｜tool▁sep｜>",
        all: &[
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁end｜>",
        ],
        call_open: "<｜tool▁call▁begin｜>",
    };

    pub(super) const KIMI_K2: Self = Self {
        opens: &["<|tool_calls_section_begin|>", "<|tool_call_begin|>"],
        separator: "<|tool_call_argument_begin|>",
        all: &[
            "<|tool_calls_section_begin|>",
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
            "<|tool_calls_section_end|>",
        ],
        call_open: "<|tool_call_begin|>",
    };

    /// All markers.
    pub(super) fn markers(&self) -> Vec<&'static str> {
        self.all.to_vec()
    }
}

/// Reads an answer with such calls.
#[derive(Debug)]
pub(super) struct SectionCalls {
    spelling: &'static SectionSpelling,
    state: State,
}

#[derive(Debug)]
enum State {
    Text,
    /// Between calls, with the markers since the text.
    Section(String),
    /// Before the separator: all text since the user's, and that of the name.
    Header(String, String),
    /// DeepSeek V3 names the kind of the call first and the function in the line after it.
    NameLine(String, String),
    /// After the name, before the arguments; V3 writes them as a block of code.
    BeforeArguments,
    Arguments(ValueSpan),
    /// After the arguments, before the end of the call.
    AfterArguments,
}

impl SectionCalls {
    pub(super) fn new(spelling: &'static SectionSpelling) -> Self {
        Self { spelling, state: State::Text }
    }

    fn separator(&mut self, text: String, header: &str, out: &mut EventSink) {
        let header = header.trim();
        if header == "function" {
            self.state = State::NameLine(text + self.spelling.separator, String::new());
            return;
        }
        // Kimi's ids are `functions.NAME:IDX`.
        let name = header.strip_prefix("functions.").unwrap_or(header);
        let name = match name.rsplit_once(':') {
            Some((name, idx)) if !idx.is_empty() && idx.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => name,
        };
        if is_tool_name(name) {
            out.begin_call_with_id(name, Some(header));
            self.state = State::BeforeArguments;
        } else {
            out.content_text(&text);
            out.content_text(self.spelling.separator);
            self.state = State::Text;
        }
    }
}

impl Machine for SectionCalls {
    fn markers(&self) -> &'static [&'static str] {
        match &self.state {
            State::Text => self.spelling.opens,
            State::Arguments(span) if span.in_string() => &[],
            _ => self.spelling.all,
        }
    }

    fn control_markers(&self) -> &'static [&'static str] {
        if matches!(self.state, State::Text) { self.spelling.opens } else { self.spelling.all }
    }

    fn marker(&mut self, marker: &'static str, out: &mut EventSink) {
        let opens_call = marker == self.spelling.call_open;
        match std::mem::replace(&mut self.state, State::Text) {
            State::Header(text, header) if marker == self.spelling.separator => {
                return self.separator(text, &header, out);
            }
            State::BeforeArguments | State::Arguments(_) | State::AfterArguments => out.end_call(),
            State::Section(text) if opens_call => {
                self.state = State::Header(text + marker, String::new());
                return;
            }
            State::Section(text) | State::Header(text, _) | State::NameLine(text, _) if !text.is_empty() => {
                out.content_text(&text);
                if !self.spelling.opens.contains(&marker) {
                    return out.content_text(marker);
                }
            }
            State::Section(_) | State::Header(..) | State::NameLine(..) | State::Text => {}
        }
        let is_last = self.spelling.all.last() == Some(&marker);
        self.state = if opens_call {
            State::Header(marker.to_owned(), String::new())
        } else if self.spelling.opens.contains(&marker) {
            State::Section(marker.to_owned())
        } else if is_last {
            State::Text
        } else {
            State::Section(String::new())
        };
    }

    fn char(&mut self, c: char, out: &mut EventSink) -> Step {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Text => out.content(c),
            State::Section(mut text) if c.is_whitespace() => {
                if !text.is_empty() {
                    text.push(c);
                }
                self.state = State::Section(text);
            }
            State::Section(text) if text.is_empty() => {
                // Text between calls is the user's, and the calls go on after it.
                out.content(c);
                self.state = State::Section(text);
            }
            State::Section(text) => {
                out.content_text(&text);
                return Step::Again;
            }
            State::Header(text, header) if header.len() > MAX_HEADER_BYTES => {
                out.content_text(&text);
                out.content(c);
            }
            State::Header(mut text, mut header) => {
                text.push(c);
                header.push(c);
                self.state = State::Header(text, header);
            }
            State::NameLine(mut text, mut name) => {
                text.push(c);
                if c != '\n' {
                    name.push(c);
                    self.state = State::NameLine(text, name);
                } else if is_tool_name(name.trim()) {
                    out.begin_call(name.trim());
                    self.state = State::BeforeArguments;
                } else {
                    out.content_text(&text);
                }
            }
            State::BeforeArguments if c == '{' || c == '[' => {
                let mut span = ValueSpan::default();
                span.take(c);
                out.argument(c);
                self.state = State::Arguments(span);
            }
            State::BeforeArguments => {
                // The beginning of V3's block of code, "```json".
                if !(c.is_whitespace() || "`json".contains(c)) {
                    out.content(c);
                }
                self.state = State::BeforeArguments;
            }
            State::Arguments(mut span) => {
                out.argument(c);
                let value = span.take(c);
                self.state =
                    if value == Value::Goes { State::Arguments(span) } else { State::AfterArguments };
            }
            State::AfterArguments => {
                // The end of the block of code, and what a model may write after it by mistake.
                if c != '`' {
                    out.content(c);
                }
                self.state = State::AfterArguments;
            }
        }
        Step::Taken
    }

    fn end(&mut self, out: &mut EventSink) {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Header(text, _) | State::NameLine(text, _) | State::Section(text) => {
                out.content_text(&text)
            }
            State::Text | State::BeforeArguments | State::Arguments(_) | State::AfterArguments => {}
        }
    }
}
