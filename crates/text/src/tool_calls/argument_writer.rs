//! Writes arguments that a model generates as tagged text as JSON, parameter by parameter. Values become
//! numbers, booleans, null, objects and lists if the tool's schema takes such; strings are streamed. Does
//! not know tags.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::events::EventSink;
use super::json_text::{ValueSpan, escape};
use super::schemas::{Kinds, ToolSchemas};

/// Writes the arguments of one call.
#[derive(Debug)]
pub(super) struct ArgumentWriter {
    tools: Arc<ToolSchemas>,
    tool: String,
    /// Names of the parameters that have been started.
    written: Vec<String>,
    value: Option<ValueText>,
    /// Whether one line break at each end of a value is dropped.
    trims_lines: bool,
}

#[derive(Debug)]
struct ValueText {
    kinds: Kinds,
    /// Text of a value that is not certainly a string; its type is determined at its end.
    text: String,
    is_streamed: bool,
    /// Position in the JSON of an object or a list.
    tree: Option<ValueSpan>,
    has_begun: bool,
    /// Whether a line break is held back, to be dropped if the value ends after it.
    has_line_end: bool,
    /// Whether the current line of the value is still empty.
    is_at_line_start: bool,
}

impl ArgumentWriter {
    /// Creates a writer for a call of `tool`.
    pub(super) fn new(tools: Arc<ToolSchemas>, tool: String, trims_lines: bool) -> Self {
        Self { tools, tool, written: Vec::new(), value: None, trims_lines }
    }

    /// Starts the value of a parameter, after ending an open one.
    pub(super) fn begin(&mut self, parameter: &str, out: &mut EventSink) {
        self.end_value(out);
        let kinds = self.tools.kinds(&self.tool, parameter);
        let is_streamed = kinds == Kinds::STRING;
        out.argument_text(if self.written.is_empty() { "{" } else { ", " });
        write_string(parameter, out);
        out.argument_text(if is_streamed { ": \"" } else { ": " });
        self.written.push(parameter.to_owned());
        let text = String::new();
        self.value = Some(ValueText {
            kinds,
            text,
            is_streamed,
            tree: None,
            has_begun: false,
            has_line_end: false,
            is_at_line_start: true,
        });
    }

    /// Adds a character of the value.
    pub(super) fn char(&mut self, c: char, out: &mut EventSink) {
        let Some(value) = &mut self.value else { return };
        value.follow(c);
        value.is_at_line_start = c == '\n';
        if !std::mem::replace(&mut value.has_begun, true) && self.trims_lines && c == '\n' {
            return;
        }
        if std::mem::take(&mut value.has_line_end) {
            value.push('\n', out);
        }
        if self.trims_lines && c == '\n' {
            value.has_line_end = true;
        } else {
            value.push(c, out);
        }
    }

    /// Whether the value is inside a string of an object or a list, where tags are text.
    pub(super) fn in_json_string(&self) -> bool {
        let tree = self.value.as_ref().and_then(|value| value.tree.as_ref());
        tree.is_some_and(ValueSpan::in_string)
    }

    /// Whether the value may be a string, in which a tag may be text.
    pub(super) fn may_be_text(&self) -> bool {
        self.value.as_ref().is_some_and(|value| value.kinds.has(Kinds::STRING))
    }

    /// Whether a tag at this position would be the first text on its line.
    pub(super) fn is_at_line_start(&self) -> bool {
        self.value.as_ref().is_some_and(|value| value.is_at_line_start)
    }

    /// Whether a parameter of this name has been started.
    pub(super) fn has(&self, parameter: &str) -> bool {
        self.written.iter().any(|name| name == parameter)
    }

    /// Whether the tool has a parameter of this name that has not been started.
    pub(super) fn expects(&self, parameter: &str) -> bool {
        self.tools.has_parameter(&self.tool, parameter) && !self.has(parameter)
    }

    /// Ends the value.
    pub(super) fn end_value(&mut self, out: &mut EventSink) {
        let Some(value) = self.value.take() else { return };
        if value.is_streamed {
            out.argument('"');
        } else {
            write_typed(&value.text, value.kinds, out);
        }
    }

    /// Ends the arguments in `open`, and the call.
    pub(super) fn end_call(open: &mut Option<Self>, out: &mut EventSink) {
        let Some(mut arguments) = open.take() else { return };
        arguments.end_value(out);
        out.argument_text(if arguments.written.is_empty() { "{}" } else { "}" });
        out.end_call();
    }

    /// Ends the answer inside the arguments: writes the known part of the open value and leaves the JSON
    /// open.
    pub(super) fn cut(&mut self, out: &mut EventSink) {
        if let Some(value) = self.value.take().filter(|value| !value.is_streamed) {
            out.argument_text(&value.text);
        }
    }
}

impl ValueText {
    /// Tracks the JSON of a value whose first character starts an object or a list.
    fn follow(&mut self, c: char) {
        if let Some(tree) = &mut self.tree {
            tree.take(c);
        } else if self.kinds.has(Kinds::TREE) && matches!(c, '{' | '[') && self.text.trim().is_empty() {
            self.tree.insert(ValueSpan::default()).take(c);
        }
    }

    fn push(&mut self, c: char, out: &mut EventSink) {
        if self.is_streamed { escape(c, |c| out.argument(c)) } else { self.text.push(c) }
    }
}

fn write_string(text: &str, out: &mut EventSink) {
    out.argument('"');
    text.chars().for_each(|c| escape(c, |c| out.argument(c)));
    out.argument('"');
}

/// Writes a value as the first possible one of `kinds`, or else as a string.
fn write_typed(text: &str, kinds: Kinds, out: &mut EventSink) {
    let word = text.trim();
    let is = |kind: Kinds, names: [&str; 2]| kinds.has(kind) && names.contains(&word);
    let is_integer = || word.strip_prefix('-').unwrap_or(word).bytes().all(|b| b.is_ascii_digit());
    let fits = |value: &RawValue| match value.get().as_bytes()[0] {
        b'-' | b'0'..=b'9' => kinds.has(Kinds::NUMBER) || kinds.has(Kinds::INTEGER) && is_integer(),
        b'[' | b'{' => kinds.has(Kinds::TREE),
        _ => false,
    };
    if is(Kinds::NULL, ["null", "None"]) {
        out.argument_text("null");
    } else if is(Kinds::BOOLEAN, ["true", "True"]) {
        out.argument_text("true");
    } else if is(Kinds::BOOLEAN, ["false", "False"]) {
        out.argument_text("false");
    } else if serde_json::from_str(word).is_ok_and(fits) {
        out.argument_text(word);
    } else {
        write_string(text, out);
    }
}
