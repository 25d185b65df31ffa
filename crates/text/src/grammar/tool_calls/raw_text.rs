//! Converts a JSON schema's conditions on strings to an expression over text without quotation marks and
//! escapes. Does not know numbers and other types.

use std::cell::Cell;

use serde_json::Value;

use super::{ANY, quoted};
use crate::grammar::{GrammarError, json_schema, lark};

/// Maximum nesting of schemas, references included.
const MAX_DEPTH: usize = 16;
/// Maximum number of schemas visited for one argument: references may reach the same one repeatedly.
const MAX_SCHEMAS: usize = 2000;
/// Maximum number of patterns of one argument: whether several can match together may take long to
/// determine.
const MAX_PATTERNS: usize = 2;
/// Maximum length of a text that is counted.
const MAX_LENGTH: u64 = 1 << 20;

/// Reads the schemas of one argument.
pub(super) struct TextSchemas<'r> {
    /// Schema that references point into.
    root: &'r Value,
    /// Number of schemas that may still be visited.
    n_left: Cell<usize>,
    /// Number of patterns so far.
    n_patterns: Cell<usize>,
}

impl<'r> TextSchemas<'r> {
    /// Creates a check for schemas whose references lead into `root`.
    pub(super) fn new(root: &'r Value) -> Self {
        Self { root, n_left: Cell::new(MAX_SCHEMAS), n_patterns: Cell::new(0) }
    }

    /// The strings that satisfy a schema, as the expression of a Lark terminal; `None` if no string does.
    ///
    /// # Errors
    /// [`GrammarError::Unsupported`] for a format that is only supported in JSON or a reference to another
    /// document, [`GrammarError::TooComplex`] beyond the limits, and errors of a pattern.
    pub(super) fn strings(&self, schema: &Value, depth: usize) -> Result<Option<String>, GrammarError> {
        self.count(depth)?;
        let members = match schema {
            Value::Object(members) => members,
            Value::Bool(false) => return Ok(None),
            _ => return Ok(Some(ANY.to_owned())),
        };
        let mut all: Vec<String> = Vec::new();
        for (keyword, value) in members {
            let each = || {
                let each = value.as_array().into_iter().flatten();
                each.map(|one| self.strings(one, depth + 1)).collect::<Result<Vec<_>, _>>()
            };
            let one = match keyword.as_str() {
                "$ref" => self.strings(self.target(value)?, depth + 1)?,
                "type" if !has_type(value, "string") => None,
                "const" => value.as_str().map(quoted),
                "enum" => {
                    any_of(value.as_array().into_iter().flatten().filter_map(Value::as_str).map(quoted))
                }
                "pattern" => {
                    self.n_patterns.set(self.n_patterns.get() + 1);
                    if self.n_patterns.get() > MAX_PATTERNS {
                        let reason =
                            format!("an argument that is text with more than {MAX_PATTERNS} patterns");
                        return Err(GrammarError::TooComplex(reason));
                    }
                    Some(found_in(value.as_str().unwrap_or_default())?)
                }
                "format" => Some(of_format(value.as_str().unwrap_or_default())?),
                "minLength" => Some(format!("/(?s:.{{{},}})/", value.as_u64().unwrap_or(0))),
                // Texts longer than an answer need no limit.
                "maxLength" if value.as_u64().is_none_or(|n| n > MAX_LENGTH) => continue,
                "maxLength" => Some(format!("/(?s:.{{0,{value}}})/")),
                "anyOf" => any_of(each()?.into_iter().flatten()),
                "oneOf" => exactly_one(&each()?),
                "allOf" => match each()?.into_iter().collect::<Option<Vec<_>>>() {
                    Some(parts) => {
                        all.extend(parts.into_iter().map(|part| format!("({part})")));
                        continue;
                    }
                    None => None,
                },
                _ => continue,
            };
            match one {
                Some(one) => all.push(format!("({one})")),
                None => return Ok(None),
            }
        }
        Ok(Some(if all.is_empty() { ANY.to_owned() } else { all.join(" & ") }))
    }

    /// Whether a schema allows `value`, which is `null` or a boolean.
    ///
    /// # Errors
    /// Errors of [`Self::strings`].
    pub(super) fn admits(&self, schema: &Value, value: &Value, depth: usize) -> Result<bool, GrammarError> {
        self.count(depth)?;
        let Value::Object(members) = schema else { return Ok(*schema != Value::Bool(false)) };
        for (keyword, operand) in members {
            let list = || operand.as_array().into_iter().flatten();
            let n_admitting = || {
                let each = list().map(|one| self.admits(one, value, depth + 1));
                each.collect::<Result<Vec<_>, _>>()
                    .map(|all| all.into_iter().filter(|admits| *admits).count())
            };
            let holds = match keyword.as_str() {
                "$ref" => self.admits(self.target(operand)?, value, depth + 1)?,
                "type" => has_type(operand, if value.is_null() { "null" } else { "boolean" }),
                "const" => operand == value,
                "enum" => list().any(|one| one == value),
                "anyOf" => n_admitting()? > 0,
                "oneOf" => n_admitting()? == 1,
                "allOf" => n_admitting()? == list().count(),
                _ => true,
            };
            if !holds {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn count(&self, depth: usize) -> Result<(), GrammarError> {
        let n_left = self.n_left.get();
        if depth >= MAX_DEPTH || n_left == 0 {
            let reason = format!(
                "an argument of more than {MAX_DEPTH} schemas within each other, or {MAX_SCHEMAS} in all"
            );
            return Err(GrammarError::TooComplex(reason));
        }
        self.n_left.set(n_left - 1);
        Ok(())
    }

    fn target(&self, reference: &Value) -> Result<&'r Value, GrammarError> {
        let path = reference.as_str().and_then(|reference| reference.strip_prefix('#'));
        path.and_then(|path| self.root.pointer(path)).ok_or_else(|| {
            GrammarError::Unsupported(format!("the reference {reference} in an argument that is text"))
        })
    }
}

fn has_type(types: &Value, name: &str) -> bool {
    types == name || types.as_array().is_some_and(|types| types.iter().any(|one| one == name))
}

fn any_of(options: impl Iterator<Item = String>) -> Option<String> {
    let options: Vec<String> = options.map(|option| format!("({option})")).collect();
    (!options.is_empty()).then(|| options.join(" | "))
}

/// Texts that match exactly one of the options.
fn exactly_one(options: &[Option<String>]) -> Option<String> {
    let present: Vec<&String> = options.iter().flatten().collect();
    any_of((0..present.len()).map(|idx| {
        let others = (0..present.len()).filter(|other| *other != idx);
        let others: String = others.map(|other| format!(" & ~({})", present[other])).collect();
        format!("({}){others}", present[idx])
    }))
}

/// Texts that contain a match of a pattern.
fn found_in(pattern: &str) -> Result<String, GrammarError> {
    lark::check_brackets(pattern)?;
    let options = top_level_options(pattern).into_iter().map(|option| {
        let body = option.strip_prefix('^').unwrap_or(option);
        let before = if body.len() < option.len() { "" } else { ANY };
        let (body, after) = match body.strip_suffix('$') {
            Some(body) if !lark::ends_in_escape(body) => (body, ""),
            _ => (body, ANY),
        };
        let body = llguidance::regex_to_lark(body, "dw");
        let body = if body.is_empty() { "\"\"".to_owned() } else { format!("/{body}/") };
        format!("{before} {body} {after}")
    });
    Ok(any_of(options).unwrap_or_default())
}

/// The top-level options of a pattern.
fn top_level_options(pattern: &str) -> Vec<&str> {
    let (mut options, mut start, mut depth) = (Vec::new(), 0, 0_usize);
    let (mut is_escaped, mut in_class) = (false, false);
    for (at, c) in pattern.char_indices() {
        match c {
            _ if is_escaped => {
                is_escaped = false;
                continue;
            }
            '\\' => is_escaped = true,
            ']' => in_class = false,
            _ if in_class => {}
            '[' => in_class = true,
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '|' if depth == 0 => {
                options.push(&pattern[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    options.push(&pattern[start..]);
    options
}

/// The formats that [`json_schema::prepare`] leaves to llguidance, as patterns.
fn of_format(format: &str) -> Result<String, GrammarError> {
    let regex = json_schema::text_format(format).ok_or_else(|| {
        GrammarError::Unsupported(format!(
            "the format '{format}' of an argument that is text is not supported"
        ))
    })?;
    Ok(format!("/{}/", llguidance::regex_to_lark(regex, "")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schema_says_which_constants_it_admits() {
        let root = json!({"$defs": {"maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]}}});
        for (schema, value, is_admitted) in [
            (json!({"$ref": "#/$defs/maybe"}), Value::Null, true),
            (json!({"$ref": "#/$defs/maybe"}), json!(true), false),
            (json!({"enum": ["a", true]}), json!(true), true),
            (json!({"enum": ["a", true]}), json!(false), false),
            (json!({"type": ["string", "boolean"], "const": false}), json!(false), true),
            (json!({"oneOf": [{}, {"type": "null"}]}), Value::Null, false),
            (json!({"allOf": [{}, {"type": "string"}]}), Value::Null, false),
            (json!(false), Value::Null, false),
        ] {
            assert_eq!(
                TextSchemas::new(&root).admits(&schema, &value, 0),
                Ok(is_admitted),
                "{schema} {value}"
            );
        }
        let endless = json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}});
        let schemas = TextSchemas::new(&endless);
        assert!(matches!(schemas.admits(&endless, &Value::Null, 0), Err(GrammarError::TooComplex(_))));
        assert!(matches!(schemas.strings(&endless, 0), Err(GrammarError::TooComplex(_))));
    }

    #[test]
    fn a_pattern_is_cut_at_options_outside_of_brackets() {
        assert_eq!(top_level_options(r"a|(b|c)|[|]|\||"), ["a", "(b|c)", "[|]", r"\|", ""]);
    }
}
