//! The formats of DeepSeek and Kimi K2, with control tokens around each call and between its name and
//! arguments. Does not know the other formats.

use super::events::EventSink;
use super::is_tool_name;
use super::json_text::{Value, ValueSpan};
use super::scanner::{Machine, Step};

/// Maximum bytes of a name before the separator.
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

    /// All markers of the format.
    pub(super) fn markers(&self) -> Vec<&'static str> {
        self.all.to_vec()
    }
}

/// Parses an answer with such calls.
#[derive(Debug)]
pub(super) struct SectionCalls {
    spelling: &'static SectionSpelling,
    state: State,
}

#[derive(Debug)]
enum State {
    Text,
    /// Between calls: markers since the last content.
    Section(String),
    /// Before the separator: all text since the last content, and the name.
    Header(String, String),
    /// After the kind of the call in DeepSeek V3, which puts the function's name on the next line.
    NameLine(String, String),
    /// After the name, before the arguments, which V3 writes as a code block.
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
        // Ids of Kimi are `functions.NAME:IDX`.
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
                // Text between calls is content, and further calls may follow.
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
                // The start of V3's code block, "```json".
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
                // The end of the code block, and text that a model may add by mistake.
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
