//! Converts structural tags to Lark: free text with constrained tagged parts, in vLLM's two forms. Does not
//! compile Lark.
//!
//! `{"type":"structural_tag","structures":[{"begin","schema","end"}, …],"triggers":[…]}`, or with a tree of
//! formats: `{"type":"structural_tag","format":{"type":"triggered_tags", …}}`.

use std::fmt::Write;

use serde_json::{Value, json};

use super::json_schema::Numbers;
use super::lark::{self, quoted};
use super::{GrammarError, json_schema};

/// Maximum number of formats of a tag, including nested ones.
const MAX_FORMATS: usize = 256;
/// Maximum nesting of formats.
const MAX_DEPTH: usize = 16;

/// Terminal that matches any text.
const ANY_TEXT: &str = "/(?s:.*)/";

/// The Lark text of a structural tag.
///
/// # Errors
/// [`GrammarError::Invalid`] with the path of the fault, [`GrammarError::Unsupported`] for a format that
/// cannot be enforced, and errors of a schema or an expression in it.
pub(super) fn to_lark(tag: &Value, numbers: &mut Numbers) -> Result<String, GrammarError> {
    let mut writer = Writer { lines: String::new(), n_formats: 0, numbers };
    let start = match (tag.get("format"), tag.get("structures")) {
        (Some(format), None) => writer.format(format, "format", 0)?,
        (None, Some(_)) => writer.triggered_tags(&as_triggered_tags(tag)?, "", 0)?,
        _ => return Err(invalid("", "expected 'format', or 'structures' with 'triggers'")),
    };
    Ok(format!("start: {start}\n{}", writer.lines))
}

/// Converts the older form to the newer one.
fn as_triggered_tags(tag: &Value) -> Result<Value, GrammarError> {
    let structures = list(tag, "structures", "")?;
    let tag_of = |structure: &Value| {
        let content = json!({ "type": "json_schema", "json_schema": structure["schema"] });
        json!({ "begin": structure["begin"], "content": content, "end": structure["end"] })
    };
    let tags: Vec<Value> = structures.iter().map(tag_of).collect();
    Ok(json!({ "type": "triggered_tags", "triggers": tag["triggers"], "tags": tags }))
}

fn invalid(path: &str, reason: &str) -> GrammarError {
    let place = if path.is_empty() { String::new() } else { format!(" at '{path}'") };
    GrammarError::Invalid(format!("invalid structural tag{place}: {reason}"))
}

fn list<'v>(value: &'v Value, key: &str, path: &str) -> Result<&'v Vec<Value>, GrammarError> {
    let list = value.get(key).and_then(Value::as_array).filter(|list| !list.is_empty());
    list.ok_or_else(|| invalid(path, &format!("'{key}' must be a list that is not empty")))
}

fn text<'v>(value: &'v Value, key: &str, path: &str) -> Result<&'v str, GrammarError> {
    let text = value.get(key).and_then(Value::as_str);
    text.ok_or_else(|| invalid(path, &format!("'{key}' must be a string")))
}

fn flag(value: &Value, key: &str) -> bool {
    value.get(key).and_then(Value::as_bool).unwrap_or(false)
}

/// The texts that may end a tag.
fn ends<'v>(tag: &'v Value, path: &str) -> Result<Vec<&'v str>, GrammarError> {
    let ends: Option<Vec<&str>> = match tag.get("end") {
        Some(Value::String(end)) => Some(vec![end]),
        Some(Value::Array(ends)) if !ends.is_empty() => ends.iter().map(Value::as_str).collect(),
        _ => None,
    };
    ends.ok_or_else(|| invalid(path, "'end' must be a string or a list of strings"))
}

fn options(texts: &[&str]) -> String {
    let list = texts.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(" | ");
    format!("({list})")
}

struct Writer<'n> {
    /// Lark text of rules and terminals so far.
    lines: String,
    n_formats: usize,
    numbers: &'n mut Numbers,
}

impl Writer<'_> {
    /// Defines a rule or, with an upper-case name, a terminal. `attributes` is like `[lazy]`. Returns its
    /// name.
    fn define(&mut self, prefix: &str, attributes: &str, body: &str) -> String {
        self.n_formats += 1;
        let name = format!("{prefix}{}", self.n_formats);
        let _ = writeln!(self.lines, "{name}{attributes}: {body}");
        name
    }

    /// The body of a rule for a format.
    fn format(&mut self, format: &Value, path: &str, depth: usize) -> Result<String, GrammarError> {
        if depth > MAX_DEPTH || self.n_formats > MAX_FORMATS {
            return Err(GrammarError::TooComplex("too many formats in a structural tag".to_owned()));
        }
        match text(format, "type", path)? {
            "const_string" => Ok(quoted(text(format, "value", path)?)),
            "any_text" => Ok(self.define("ANY", "", ANY_TEXT)),
            "regex" => {
                let body = lark::of_regex(text(format, "pattern", path)?)?;
                let body = body.trim_start_matches("start: ");
                Ok(if body == "\"\"" { body.to_owned() } else { self.define("REGEX", "", body) })
            }
            "json_schema" => {
                let schema = format.get("json_schema").unwrap_or(&Value::Null);
                let schema = self.numbers.lower(json_schema::prepare(schema)?)?;
                Ok(self.define("json", "", &format!("%json {schema}")))
            }
            kind @ ("sequence" | "or") => {
                let elements = list(format, "elements", path)?.iter().enumerate();
                let parts: Result<Vec<String>, GrammarError> = elements
                    .map(|(idx, part)| self.format(part, &format!("{path}.elements[{idx}]"), depth + 1))
                    .collect();
                Ok(format!("({})", parts?.join(if kind == "or" { " | " } else { " " })))
            }
            "tag" => self.tag(format, "", path, depth),
            "triggered_tags" => self.triggered_tags(format, path, depth),
            "tags_with_separator" => self.separated_tags(format, path, depth),
            other => {
                let other: String = other.chars().take(64).collect();
                Err(GrammarError::Unsupported(format!("the format '{other}' at '{path}' is not supported")))
            }
        }
    }

    /// A tag whose start `written` has already been matched.
    fn tag(&mut self, tag: &Value, written: &str, path: &str, depth: usize) -> Result<String, GrammarError> {
        let begin = text(tag, "begin", path)?;
        let begin = quoted(begin.strip_prefix(written).unwrap_or(begin));
        let ends = options(&ends(tag, path)?);
        let content = tag.get("content").ok_or_else(|| invalid(path, "'content' is missing"))?;
        let path = format!("{path}.content");
        if content.get("type").and_then(Value::as_str) == Some("any_text") {
            // The text continues to the first end marker.
            let text = self.define("TEXT", "", &format!("{ANY_TEXT} {ends}"));
            let text = self.define("text", "[lazy]", &text);
            return Ok(format!("({begin} {text})"));
        }
        let content = self.format(content, &path, depth + 1)?;
        Ok(format!("({begin} {content} {ends})"))
    }

    fn triggered_tags(&mut self, format: &Value, path: &str, depth: usize) -> Result<String, GrammarError> {
        let triggers: Option<Vec<&str>> = list(format, "triggers", path)?.iter().map(Value::as_str).collect();
        let triggers = triggers.filter(|triggers| triggers.iter().all(|trigger| !trigger.is_empty()));
        let triggers =
            triggers.ok_or_else(|| invalid(path, "'triggers' must be strings that are not empty"))?;
        let tags = list(format, "tags", path)?;
        let mut by_trigger: Vec<Vec<String>> = vec![Vec::new(); triggers.len()];
        for (idx, tag) in tags.iter().enumerate() {
            let path = format!("{path}.tags[{idx}]");
            let begin = text(tag, "begin", &path)?;
            let mut fitting = (0..triggers.len()).filter(|idx| begin.starts_with(triggers[*idx]));
            let (Some(trigger), None) = (fitting.next(), fitting.next()) else {
                return Err(invalid(&path, "'begin' must start with exactly one of the triggers"));
            };
            by_trigger[trigger].push(self.tag(tag, triggers[trigger], &path, depth)?);
        }
        let mut parts = Vec::new();
        for (trigger, tags) in triggers.iter().zip(&by_trigger).filter(|(_, tags)| !tags.is_empty()) {
            let text = self.define("BEFORE", "", &format!("{ANY_TEXT} {}", quoted(trigger)));
            let text = self.define("before", "[lazy]", &text);
            parts.push(format!("{text} ({})", tags.join(" | ")));
        }
        let one = self.define("tagged", "", &parts.join(" | "));
        let with_trigger = format!("{ANY_TEXT} {} {ANY_TEXT}", options(&triggers));
        let tail = self.define("TAIL", "", &format!("{ANY_TEXT} & ~({with_trigger})"));
        Ok(match (flag(format, "at_least_one"), flag(format, "stop_after_first")) {
            (false, false) => format!("({one}* {tail})"),
            (true, false) => format!("({one}+ {tail})"),
            (false, true) => format!("({one} | {tail})"),
            (true, true) => one,
        })
    }

    fn separated_tags(&mut self, format: &Value, path: &str, depth: usize) -> Result<String, GrammarError> {
        let tags = list(format, "tags", path)?.iter().enumerate();
        let tags: Result<Vec<String>, GrammarError> =
            tags.map(|(idx, tag)| self.tag(tag, "", &format!("{path}.tags[{idx}]"), depth)).collect();
        let one = self.define("tagged", "", &tags?.join(" | "));
        let separator = quoted(text(format, "separator", path)?);
        let more =
            if flag(format, "stop_after_first") { String::new() } else { format!(" ({separator} {one})*") };
        Ok(if flag(format, "at_least_one") { format!("({one}{more})") } else { format!("({one}{more})?") })
    }
}
