//! Prepares JSON schemas for llguidance: checks limits and unenforceable keywords, and rewrites spellings
//! that it does not support. Does not compile schemas.

mod disjoint;
mod formats;
mod intersections;
mod numbers;
mod patterns;
mod references;
mod rewrite;

use serde_json::{Map, Value, json};

use super::GrammarError;
use crate::exact_number;
use disjoint::Disjoint;

pub(super) use formats::text_format;
pub(super) use numbers::Numbers;

/// Maximum nesting of values in a schema.
const MAX_DEPTH: usize = 64;
/// Maximum number of values in a schema.
const MAX_VALUES: usize = 20_000;
/// Maximum bytes of a text in a schema: required text is stored for each output.
pub(super) const MAX_TEXT_BYTES: usize = 16 << 10;
/// Maximum number of references: they may form a chain, over which llguidance recurses.
const MAX_REFERENCES: usize = 512;
/// Maximum number of schemas in a schema.
const MAX_SCHEMAS: usize = 2000;
/// Maximum number of properties of one object: each may follow any other.
const MAX_PROPERTIES: usize = 400;
/// Maximum of the least common multiple of all `multipleOf` without their powers of ten: an automaton
/// counts up to it.
const MAX_MULTIPLE: u64 = 10_000;
/// Maximum of a lower bound on a length: longer texts never fit an answer.
const MAX_LENGTH: u64 = 100_000;
/// Maximum of a lower bound on items and properties.
const MAX_COUNT: u64 = 10_000;

/// Key of llguidance's options.
pub(super) const OPTIONS_KEY: &str = "x-guidance";

/// White space between tokens: a space, or up to two line breaks and indentation. Without a limit, a model
/// could write white space endlessly.
const WHITESPACE: &str = r" |\r?\n{1,2}[ \t]{0,20}";

/// Keywords of any draft that affect validation and cannot be enforced.
const UNSUPPORTED: &[&str] = &[
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "disallow",
    "divisibleBy",
    "else",
    "extends",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
];

/// Keywords whose value is a schema.
const SCHEMA: &[&str] = &["additionalItems", "additionalProperties", "items"];
/// Keywords whose value is an array of schemas.
const SCHEMAS: &[&str] = &["allOf", "anyOf", "items", "oneOf", "prefixItems"];
/// Keywords whose value is an object of schemas.
const SCHEMA_MAP: &[&str] = &["$defs", "definitions", "patternProperties", "properties"];

/// Checks a schema and converts it for [`Numbers::lower`]: an object with llguidance's options.
///
/// # Errors
/// [`GrammarError::UnsupportedKeyword`], [`GrammarError::Unsupported`] for a format,
/// [`GrammarError::TooComplex`], [`GrammarError::Invalid`], and [`GrammarError::Unsatisfiable`] for
/// `false`.
pub(super) fn prepare(schema: &Value) -> Result<Value, GrammarError> {
    Ok(with_options(&checked(schema)?, None))
}

/// Checks and converts a schema like [`prepare`], without options.
pub(super) fn checked(schema: &Value) -> Result<Value, GrammarError> {
    check_size(schema)?;
    let mut schema = match schema {
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => {
            return Err(GrammarError::Unsatisfiable("the schema is false".to_owned()));
        }
        Value::Object(members) => members.clone(),
        _ => return Err(invalid("#", "a schema must be an object or a boolean")),
    };
    references::hoist(&mut schema)?;
    let root = Value::Object(schema.clone());
    Check { n_schemas: 0, multiple: 1, disjoint: Disjoint::new(&root) }.object(&mut schema, "#")?;
    let schema = Value::Object(schema);
    intersections::check(&schema)?;
    Ok(schema)
}

/// Adds llguidance's options to a checked schema. Strings use the escapes in `escapes` (the characters
/// after the backslash), or all of JSON's.
pub(super) fn with_options(schema: &Value, escapes: Option<&str>) -> Value {
    let mut schema = schema.as_object().cloned().unwrap_or_else(Map::new);
    let mut options = json!({ "whitespace_pattern": WHITESPACE });
    if let Some(escapes) = escapes {
        options["json_allowed_escapes"] = Value::from(escapes);
    }
    schema.insert(OPTIONS_KEY.to_owned(), options);
    Value::Object(schema)
}

fn invalid(path: &str, reason: &str) -> GrammarError {
    GrammarError::Invalid(format!("invalid JSON schema at '{path}': {reason}"))
}

fn too_complex(reason: String) -> GrammarError {
    GrammarError::TooComplex(reason)
}

/// Checks the size without recursion, because the nesting is not limited yet.
fn check_size(schema: &Value) -> Result<(), GrammarError> {
    let (mut n_values, mut n_references) = (0, 0);
    let mut stack = vec![(schema, 1)];
    while let Some((value, depth)) = stack.pop() {
        n_values += 1;
        if depth > MAX_DEPTH {
            return Err(too_complex(format!("a schema nested more than {MAX_DEPTH} levels deep")));
        }
        match value {
            Value::Array(elements) => stack.extend(elements.iter().map(|element| (element, depth + 1))),
            Value::Object(members) => {
                n_references += usize::from(members.contains_key("$ref"));
                stack.extend(members.values().map(|member| (member, depth + 1)));
            }
            Value::String(text) if text.len() > MAX_TEXT_BYTES => {
                return Err(too_complex(format!("a text of more than {MAX_TEXT_BYTES} bytes in the schema")));
            }
            _ => {}
        }
        if n_values + stack.len() > MAX_VALUES {
            return Err(too_complex(format!("a schema of more than {MAX_VALUES} values")));
        }
    }
    if n_references > MAX_REFERENCES {
        return Err(too_complex(format!("a schema of more than {MAX_REFERENCES} references")));
    }
    Ok(())
}

/// Limits and counts over a whole schema.
struct Check<'r> {
    n_schemas: usize,
    /// Checks whether options of `oneOf` exclude each other.
    disjoint: Disjoint<'r>,
    /// Least common multiple of the `multipleOf` so far.
    multiple: u64,
}

/// The pattern that replaces a format, if any, and whether the format is only an annotation. A format that
/// llguidance treats too loosely is narrowed in place.
///
/// # Errors
/// When it is a format of JSON Schema that cannot be enforced.
fn format_rule(format: &mut String, path: &str) -> Result<(Option<String>, bool), GrammarError> {
    if formats::UNSUPPORTED_FORMATS.contains(&format.as_str()) {
        let reason = format!("the format '{format}' at '{path}' is not supported");
        return Err(GrammarError::Unsupported(reason));
    }
    if let Some(narrower) = formats::narrower(format) {
        *format = narrower.to_owned();
        return Ok((None, false));
    }
    let pattern = formats::format_pattern(format);
    // Formats outside of JSON Schema, such as OpenAPI's `int64`, are ignored.
    let is_annotation = pattern.is_none() && !formats::FORMATS.contains(&format.as_str());
    Ok((pattern, is_annotation))
}

impl Check<'_> {
    fn schema(&mut self, schema: &mut Value, path: &str) -> Result<(), GrammarError> {
        match schema {
            Value::Bool(_) => Ok(()),
            Value::Object(members) => self.object(members, path),
            _ => Err(invalid(path, "a schema must be an object or a boolean")),
        }
    }

    fn object(&mut self, schema: &mut Map<String, Value>, path: &str) -> Result<(), GrammarError> {
        self.n_schemas += 1;
        if self.n_schemas > MAX_SCHEMAS {
            return Err(too_complex(format!("more than {MAX_SCHEMAS} schemas in a schema")));
        }
        rewrite::keywords(schema);
        if let Some(Value::Array(options)) = schema.get("oneOf")
            && self.disjoint.all(options)
        {
            let options = schema.shift_remove("oneOf").unwrap_or_default();
            rewrite::and(schema, json!({ "anyOf": options }));
        }
        if let Some(coefficient) = numbers::check(schema, path)? {
            self.multiple_of(coefficient, path)?;
        }
        patterns::check(schema, path)?;
        let (mut pattern, mut is_annotation) = (None, false);
        for (keyword, value) in schema.iter_mut() {
            let at = || format!("{path}/{}", references::escaped(keyword));
            let word = keyword.as_str();
            if UNSUPPORTED.contains(&word) {
                return Err(GrammarError::UnsupportedKeyword {
                    keyword: keyword.clone(),
                    path: path.to_owned(),
                });
            }
            match (word, &mut *value) {
                ("format", Value::String(format)) => (pattern, is_annotation) = format_rule(format, path)?,
                (
                    "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties",
                    number,
                ) => {
                    check_count(word, number, &at())?;
                }
                (_, Value::Array(schemas)) if SCHEMAS.contains(&word) => {
                    for (idx, schema) in schemas.iter_mut().enumerate() {
                        self.schema(schema, &format!("{}/{idx}", at()))?;
                    }
                }
                ("properties", Value::Object(all)) if all.len() > MAX_PROPERTIES => {
                    return Err(too_complex(format!("more than {MAX_PROPERTIES} properties at '{}'", at())));
                }
                (_, Value::Object(schemas)) if SCHEMA_MAP.contains(&word) => {
                    for (name, schema) in schemas.iter_mut() {
                        self.schema(schema, &format!("{}/{name}", at()))?;
                    }
                }
                (_, schema) if SCHEMA.contains(&word) => self.schema(schema, &at())?,
                (_, value) if SCHEMAS.contains(&word) || SCHEMA_MAP.contains(&word) => {
                    return Err(invalid(
                        &at(),
                        &format!("the value of '{}' is of the wrong type: {}", word, kind(value)),
                    ));
                }
                _ => {}
            }
        }
        if pattern.is_some() || is_annotation {
            schema.shift_remove("format");
        }
        if let Some(pattern) = pattern {
            rewrite::and(schema, json!({ "pattern": pattern }));
        }
        Ok(())
    }

    /// Restricts the number to multiples of `coefficient` too, beside those of earlier schemas.
    fn multiple_of(&mut self, coefficient: u64, path: &str) -> Result<(), GrammarError> {
        let (mut a, mut b) = (self.multiple, coefficient);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        self.multiple = (self.multiple / a).saturating_mul(coefficient);
        if self.multiple > MAX_MULTIPLE {
            return Err(too_complex(format!(
                "'multipleOf' at '{path}/multipleOf': numbers with a common multiple above {MAX_MULTIPLE}"
            )));
        }
        Ok(())
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Object(members) if exact_number::exact_text(members).is_some() => "a number",
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Converts `2.0` to an integer.
fn check_count(keyword: &str, number: &mut Value, path: &str) -> Result<(), GrammarError> {
    let value = exact_number::as_f64(number).filter(|count| *count >= 0.0 && count.fract() == 0.0);
    let Some(count) = value else {
        return Err(invalid(path, "it must be a number of at least 0 without fraction"));
    };
    let largest = if keyword.ends_with("Length") { MAX_LENGTH } else { MAX_COUNT };
    if keyword.starts_with("min") && count > largest as f64 {
        return Err(too_complex(format!("'{keyword}' at '{path}' is above {largest}")));
    }
    *number = Value::from(count as u64);
    Ok(())
}
