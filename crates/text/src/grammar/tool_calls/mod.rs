//! Calls of tools as Lark: what an answer must look like for its calls to be found and their arguments to satisfy the
//! tools' schemas. Does not know how calls are read and what makes a request ask for them.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::lark::quoted;
use super::{GrammarError, json_schema};
use crate::tool_calls::ToolCallFormat;

/// The calls that an answer may or must have.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCallSpec {
    /// How the model writes calls.
    pub format: ToolCallFormat,
    /// The tools that may be called.
    pub tools: Vec<CallableTool>,
    /// The answer is calls and nothing else; otherwise it is text in which calls may stand.
    pub must_call: bool,
    /// Most one call.
    pub only_one: bool,
    /// The ids and spellings of the format's markers that are control tokens of the model.
    pub control: Vec<(u32, &'static str)>,
}

/// A tool that may be called.
#[derive(Debug, Clone, PartialEq)]
pub struct CallableTool {
    /// Its name: letters, digits, `_` and `-`.
    pub name: String,
    /// The schema of the object that its arguments are.
    pub arguments: Value,
}

/// How a format writes calls.
struct CallSpelling {
    /// Before the first call.
    before: &'static str,
    /// Before the name.
    call: &'static str,
    /// Between the name and the number of the call, for formats that number calls.
    number: &'static str,
    /// Between the name and the arguments.
    arguments: &'static str,
    /// After the arguments.
    call_end: &'static str,
    /// Between two calls.
    between: &'static str,
    /// After the last call.
    after: &'static str,
    /// With what the text before a call ends, the beginning of what is written before the first call; empty where a call
    /// can only be the whole answer.
    trigger: &'static str,
    /// What else begins calls: free text must not have it.
    also: &'static str,
}

const JSON: CallSpelling = CallSpelling {
    before: "",
    call: "{\"name\": \"",
    number: "",
    arguments: "\", \"arguments\": ",
    call_end: "}",
    between: ", ",
    after: "",
    trigger: "",
    also: "",
};

const DEEPSEEK: CallSpelling = CallSpelling {
    before: "<｜tool▁calls▁begin｜>",
    call: "<｜tool▁call▁begin｜>",
    number: "",
    arguments: "<｜tool▁sep｜>",
    call_end: "<｜tool▁call▁end｜>",
    between: "",
    after: "<｜tool▁calls▁end｜>",
    trigger: "<｜tool▁calls▁begin｜>",
    also: "<｜tool▁call▁begin｜>",
};

const KIMI_K2: CallSpelling = CallSpelling {
    before: "<|tool_calls_section_begin|>",
    call: "<|tool_call_begin|>functions.",
    number: ":",
    arguments: "<|tool_call_argument_begin|>",
    call_end: "<|tool_call_end|>",
    between: "",
    after: "<|tool_calls_section_end|>",
    trigger: "<|tool_calls_section_begin|>",
    also: "<|tool_call_begin|>",
};

impl ToolCallSpec {
    /// Whether calls of a format can be written as a grammar. Not those whose values are text between tags or Python's.
    pub fn can_write(format: ToolCallFormat) -> bool {
        format == ToolCallFormat::Harmony || spelling(format, &|_| false).is_some()
    }
}

/// The spelling that the model's own markers tell, where a format has several.
fn spelling(format: ToolCallFormat, is_control: &dyn Fn(&str) -> bool) -> Option<CallSpelling> {
    Some(match format {
        ToolCallFormat::Hermes => CallSpelling {
            before: "<tool_call>\n",
            between: "\n</tool_call>\n<tool_call>\n",
            after: "\n</tool_call>",
            trigger: "<tool_call>",
            ..JSON
        },
        ToolCallFormat::Llama3Json => {
            CallSpelling { arguments: "\", \"parameters\": ", between: "; ", also: "<|python_tag|>", ..JSON }
        }
        ToolCallFormat::Mistral if is_control("[ARGS]") => CallSpelling {
            call: "[TOOL_CALLS]",
            arguments: "[ARGS]",
            call_end: "",
            between: "",
            trigger: "[TOOL_CALLS]",
            ..JSON
        },
        ToolCallFormat::Mistral => {
            CallSpelling { before: "[TOOL_CALLS][", after: "]", trigger: "[TOOL_CALLS]", ..JSON }
        }
        ToolCallFormat::Granite => CallSpelling {
            before: "<|tool_call|>[",
            after: "]",
            trigger: "<|tool_call|>",
            also: "<tool_call>",
            ..JSON
        },
        ToolCallFormat::Granite20bFc => CallSpelling {
            before: "<function_call> ",
            between: "\n<function_call> ",
            trigger: "<function_call>",
            ..JSON
        },
        ToolCallFormat::Phi4Mini if is_control("<|tool_call|>") => CallSpelling {
            before: "<|tool_call|>[",
            after: "]<|/tool_call|>",
            trigger: "<|tool_call|>",
            also: "functools[",
            ..JSON
        },
        ToolCallFormat::Phi4Mini => CallSpelling {
            before: "functools[",
            after: "]",
            trigger: "functools[",
            also: "<|tool_call|>",
            ..JSON
        },
        ToolCallFormat::Jamba => CallSpelling {
            before: "<tool_calls>[\n    ",
            between: ",\n    ",
            after: "\n]</tool_calls>",
            trigger: "<tool_calls>",
            ..JSON
        },
        ToolCallFormat::DeepSeek => DEEPSEEK,
        ToolCallFormat::KimiK2 => KIMI_K2,
        _ => return None,
    })
}

/// Any text.
const ANY: &str = "/(?s:.*)/";

/// The Lark text of calls.
///
/// # Errors
/// [`GrammarError::Unsupported`] for a format whose calls cannot be written as a grammar, and what a tool's schema gives,
/// with the tool's name.
pub(super) fn to_lark(spec: &ToolCallSpec) -> Result<String, GrammarError> {
    let mut writer = Writer { spec, lines: String::new() };
    writer.schemas()?;
    let start = match spec.format {
        ToolCallFormat::Harmony => writer.harmony()?,
        format => {
            let is_control = |text: &str| spec.control.iter().any(|known| known.1 == text);
            let spelling = spelling(format, &is_control).ok_or_else(|| unsupported(format))?;
            writer.calls(&spelling)
        }
    };
    Ok(format!("start: {start}\n{}", writer.lines))
}

fn unsupported(format: ToolCallFormat) -> GrammarError {
    GrammarError::Unsupported(format!("calls of the format {format:?} cannot be held to a grammar"))
}

struct Writer<'s> {
    spec: &'s ToolCallSpec,
    /// Rules and terminals.
    lines: String,
}

impl Writer<'_> {
    fn define(&mut self, name: &str, body: &str) {
        let _ = writeln!(self.lines, "{name}: {body}");
    }

    /// The rule `args_IDX` of each tool.
    fn schemas(&mut self) -> Result<(), GrammarError> {
        for (idx, tool) in self.spec.tools.iter().enumerate() {
            let mut schema = tool.arguments.as_object().cloned().unwrap_or_else(Map::new);
            schema.insert("type".to_owned(), Value::from("object"));
            let schema =
                json_schema::prepare(&Value::Object(schema)).map_err(|error| of_tool(tool, error))?;
            self.define(&format!("args_{idx}"), &format!("%json {schema}"));
        }
        Ok(())
    }

    /// A text in which markers that are control tokens are these tokens.
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

    /// One call of any tool, of which `call` is written before the name.
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

    /// Calls, of whose beginning `trigger` stands already.
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
            // An answer that begins with an object would be read as a call.
            self.define("TEXT", &format!("/[^{{\\s](?s:.*)/ {without_also}"));
            return "calls | TEXT | \"\"".to_owned();
        }
        let trigger = self.literal(spelling.trigger);
        let is_token = trigger.starts_with("<[");
        self.define("SOME", &format!("{ANY} {without_also}"));
        if is_token {
            self.define("before", &format!("SOME {trigger}"));
            self.define("TAIL", &format!("/(?s:.+)/ {without_also}"));
        } else {
            self.define("BEFORE", &format!("SOME {trigger}"));
            self.define("before[lazy]", "BEFORE");
            self.define("TAIL", &format!("/(?s:.+)/ {without_also} {}", without(spelling.trigger)));
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

/// An error of a tool's schema with the tool's name.
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
