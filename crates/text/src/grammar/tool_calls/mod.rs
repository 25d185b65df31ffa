//! Tool calls as Lark: the form of an answer whose calls can be parsed and whose arguments satisfy the
//! tools' schemas. Does not parse calls.

mod arguments;
mod raw_text;
mod spelling;

use std::fmt::Write;

use serde_json::{Map, Value};

use super::json_schema::Numbers;
use super::lark::quoted;
use super::{GrammarError, json_schema};
use crate::tool_calls::ToolCallFormat;
use arguments::Arguments;
use spelling::{ArgumentStyle, CallSpelling, JSON, spelling};

/// The calls in an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCallSpec {
    /// Format of the model's calls.
    pub format: ToolCallFormat,
    /// Tools that may be called.
    pub tools: Vec<CallableTool>,
    /// Whether the answer consists of calls only; otherwise it is text that may contain calls.
    pub must_call: bool,
    /// Whether at most one call is allowed.
    pub only_one: bool,
    /// Ids and spellings of the format's markers that are control tokens of the model.
    pub control: Vec<(u32, &'static str)>,
}

/// A tool that may be called.
#[derive(Debug, Clone, PartialEq)]
pub struct CallableTool {
    /// Name: letters, digits, `_` and `-`.
    pub name: String,
    /// Schema of the object of its arguments.
    pub arguments: Value,
}

/// Terminal that matches any text.
const ANY: &str = "/(?s:.*)/";

/// The Lark text of calls.
///
/// # Errors
/// [`GrammarError::Unsupported`] for a format whose calls cannot be expressed as a grammar, and errors of a
/// tool's schema, with the tool's name.
pub(super) fn to_lark(spec: &ToolCallSpec, numbers: &mut Numbers) -> Result<String, GrammarError> {
    let mut writer = Writer { spec, lines: String::new(), n_copied_bytes: 0, numbers };
    let is_control = |text: &str| spec.control.iter().any(|known| known.1 == text);
    let start = match spelling(spec.format, &is_control) {
        Some(spelling) => {
            writer.arguments(spelling.style)?;
            writer.calls(&spelling)
        }
        None => {
            writer.arguments(ArgumentStyle::Json)?;
            writer.harmony()?
        }
    };
    Ok(format!("start: {start}\n{}", writer.lines))
}

fn unsupported(format: ToolCallFormat) -> GrammarError {
    GrammarError::Unsupported(format!("calls of the format {format:?} cannot be held to a grammar"))
}

struct Writer<'s> {
    spec: &'s ToolCallSpec,
    /// Lark text of rules and terminals so far.
    lines: String,
    /// Bytes of schemas that were copied for an argument's references.
    n_copied_bytes: usize,
    /// Conditions on numbers.
    numbers: &'s mut Numbers,
}

impl Writer<'_> {
    fn define(&mut self, name: &str, body: &str) {
        let _ = writeln!(self.lines, "{name}: {body}");
    }

    /// Writes the rule `args_IDX` of each tool.
    fn arguments(&mut self, style: ArgumentStyle) -> Result<(), GrammarError> {
        for (idx, tool) in self.spec.tools.iter().enumerate() {
            let mut schema = tool.arguments.as_object().cloned().unwrap_or_else(Map::new);
            schema.insert("type".to_owned(), Value::from("object"));
            let schema =
                json_schema::prepare(&Value::Object(schema)).map_err(|error| of_tool(tool, error))?;
            let rule = format!("args_{idx}");
            let mut arguments = Arguments { writer: self, rule: &rule, schema: &schema, n_bytes: None };
            let body = match style {
                ArgumentStyle::Json => {
                    self.numbers.lower(schema.clone()).map(|schema| format!("%json {schema}"))
                }
                ArgumentStyle::Tagged(tags) => arguments.tagged(tags),
                ArgumentStyle::Python => arguments.python(&tool.name),
            };
            let body = body.map_err(|error| of_tool(tool, error))?;
            self.define(&rule, &body);
        }
        Ok(())
    }

    /// A text whose markers become control tokens if the model has them.
    fn literal(&self, text: &str) -> String {
        let mut parts = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let found = |known: &&(u32, &'static str)| rest.find(known.1).map(|at| (at, **known));
            let next = self.spec.control.iter().filter_map(|known| found(&known)).min_by_key(|next| next.0);
            let (end, token) = next.map_or((rest.len(), None), |(at, known)| (at, Some(known)));
            if end > 0 {
                parts.push(quoted(&rest[..end]));
            }
            rest = &rest[end..];
            if let Some((id, marker)) = token {
                parts.push(format!("<[{id}]>"));
                rest = &rest[marker.len()..];
            }
        }
        if parts.is_empty() { "\"\"".to_owned() } else { parts.join(" ") }
    }

    /// Writes the rule of one call of any tool; `call` is the text before the name.
    fn one(&mut self, rule: &str, call: &str, spelling: &CallSpelling) {
        let tools = self.spec.tools.iter().enumerate();
        let number = if spelling.number.is_empty() { "" } else { " NUMBER " };
        let options = tools.map(|(idx, tool)| {
            let name = self.literal(&format!("{call}{}{}", tool.name, spelling.number));
            let before = format!("{name}{number} {}", self.literal(spelling.arguments));
            format!("{before} args_{idx} {}", self.literal(spelling.call_end))
        });
        let options = options.collect::<Vec<_>>().join(" | ");
        self.define(rule, &options);
    }

    /// Calls whose start `trigger` has already been matched.
    fn group(&mut self, rule: &str, trigger: &str, spelling: &CallSpelling) {
        if !spelling.number.is_empty() {
            self.define("NUMBER", "/[0-9]{1,3}/");
        }
        self.one("call", spelling.call, spelling);
        let (before, first) = match spelling.before.strip_prefix(trigger) {
            Some(before) => (before, "call"),
            None => {
                self.one("first", spelling.call.strip_prefix(trigger).unwrap_or(spelling.call), spelling);
                ("", "first")
            }
        };
        let (before, after) = (self.literal(before), self.literal(spelling.after));
        let more = if self.spec.only_one {
            String::new()
        } else {
            format!(" ({} call)*", self.literal(spelling.between))
        };
        self.define(rule, &format!("{before} {first}{more} {after}"));
    }

    fn calls(&mut self, spelling: &CallSpelling) -> String {
        if self.spec.must_call {
            self.group("calls", "", spelling);
            return "calls".to_owned();
        }
        self.group("calls", spelling.trigger, spelling);
        let without = |text: &str| format!("& ~({ANY} {} {ANY})", quoted(text));
        let without_also = if spelling.also.is_empty() { String::new() } else { without(spelling.also) };
        if spelling.trigger.is_empty() {
            // An answer that starts like a call would be parsed as one.
            self.define("TEXT", &format!("/[^{}\\s](?s:.*)/ {without_also}", spelling.first_char));
            return "calls | TEXT | \"\"".to_owned();
        }
        let trigger = self.literal(spelling.trigger);
        let is_token = trigger.starts_with("<[");
        let (some, tail) = match spelling.bare {
            "" => (ANY.to_owned(), "/(?s:.+)/".to_owned()),
            bare => {
                let text = format!("\\s*[^\\s{bare}](?s:.*)");
                (format!("/({text})?/"), format!("/{text}/"))
            }
        };
        self.define("SOME", &format!("{some} {without_also}"));
        if is_token {
            self.define("before", &format!("SOME {trigger}"));
            self.define("TAIL", &format!("{tail} {without_also}"));
        } else {
            self.define("BEFORE", &format!("SOME {trigger}"));
            self.define("before[lazy]", "BEFORE");
            self.define("TAIL", &format!("{tail} {without_also} {}", without(spelling.trigger)));
        }
        let repeat = if self.spec.only_one { "?" } else { "*" };
        format!("(before calls){repeat} TAIL?")
    }

    /// Messages on channels: at most one call, which ends the answer, after a message to the user.
    fn harmony(&mut self) -> Result<String, GrammarError> {
        let spelling = CallSpelling {
            before: "<|channel|>",
            call: "commentary to=functions.",
            arguments: " <|constrain|>json<|message|>",
            call_end: "",
            ..JSON
        };
        self.one("call", spelling.call, &spelling);
        let channel = self.literal("<|channel|>");
        if self.spec.must_call {
            return Ok(format!("{channel} call"));
        }
        let message = self.literal("<|message|>");
        if !message.starts_with("<[") {
            return Err(unsupported(ToolCallFormat::Harmony));
        }
        let ending = self.literal("<|end|><|start|>assistant");
        self.define("SOME", ANY);
        self.define("said", &format!("\"commentary\" {message} SOME {ending} {channel}"));
        Ok(format!("{channel} said* (call | \"final\" {message} SOME)"))
    }
}

/// Adds the tool's name to an error of its schema.
fn of_tool(tool: &CallableTool, error: GrammarError) -> GrammarError {
    let named = |text: String| format!("the parameters of the function '{}': {text}", tool.name);
    match error {
        GrammarError::Invalid(text) => GrammarError::Invalid(named(text)),
        GrammarError::Unsupported(text) => GrammarError::Unsupported(named(text)),
        GrammarError::UnsupportedKeyword { keyword, path } => GrammarError::UnsupportedKeyword {
            keyword,
            path: format!("{}/parameters{}", tool.name, &path[1..]),
        },
        GrammarError::TooComplex(text) => GrammarError::TooComplex(named(text)),
        GrammarError::Unsatisfiable(text) => GrammarError::Unsatisfiable(named(text)),
        other => other,
    }
}
