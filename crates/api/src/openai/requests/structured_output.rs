//! The parameters that constrain outputs, in the forms of OpenAI, vLLM, SGLang and llama.cpp, as one
//! specification. Does not know how constraints are enforced.

use serde_json::Value;
use throng_text::exact_number;
use throng_text::grammar::ConstraintSpec;

use super::generation_values::{MAX_LABEL_BYTES, MAX_SCHEMA_VALUES};
use crate::error::ApiError;
use crate::field::{ReadOptions, Shape};
use crate::json::{JsonType, MAX_TREE_BYTES, Node};
use crate::spec::{GenerationOptions, MAX_DESCRIPTION_BYTES};

/// Maximum number of texts that are read from a choice; the compiler has a lower bound of its own.
const MAX_CHOICES: usize = 10_000;

pub(super) fn read_response_format(
    r: &mut GenerationOptions,
    node: &Node<'_, '_>,
    _: &ReadOptions,
) -> Result<(), ApiError> {
    const FORMATS: &[&str] = &["text", "json_object", "json_schema", "structural_tag"];
    const KEYS: &[&str] = &["type", "json_schema", "schema", "structures", "triggers", "format"];
    let mut format = None;
    node.known_members(KEYS, |key, value| {
        match key {
            _ if value.is_null() => {}
            "type" => format = Some(value.one_of(FORMATS)?),
            "json_schema" => check_named_schema(&value)?,
            "schema" => Shape::Object.check(&value)?,
            _ => {}
        }
        Ok(())
    })?;
    node.check_complexity(MAX_SCHEMA_VALUES)?;
    let Some(format) = format else {
        return Err(ApiError::missing_required_parameter(node.path_of("type")));
    };
    if FORMATS[format] == "text" {
        return Ok(());
    }
    let mut tree = node.exact_tree()?;
    let mut taken = |path: &str| tree.pointer_mut(path).map(Value::take).filter(|value| !value.is_null());
    let spec = match FORMATS[format] {
        // llama.cpp's form has a schema beside this type.
        "json_object" => taken("/schema").map_or(ConstraintSpec::JsonObject, ConstraintSpec::JsonSchema),
        // Schemas are always enforced strictly.
        "json_schema" => match taken("/json_schema/schema").or_else(|| taken("/schema")) {
            Some(schema) => ConstraintSpec::JsonSchema(schema),
            None => {
                let path = if taken("/json_schema").is_some() { "json_schema.schema" } else { "json_schema" };
                return Err(ApiError::missing_required_parameter(format!("{}.{path}", node.path())));
            }
        },
        _ => ConstraintSpec::StructuralTag(tree),
    };
    r.constrain(node.path(), spec)
}

/// Checks OpenAI's object with a name, a schema and other members.
fn check_named_schema(node: &Node<'_, '_>) -> Result<(), ApiError> {
    let mut is_named = false;
    node.known_members(&["name", "description", "schema", "strict"], |key, value| match key {
        _ if value.is_null() => Ok(()),
        "name" => {
            is_named = true;
            value.string(MAX_LABEL_BYTES).map(drop)
        }
        "description" => value.string(MAX_DESCRIPTION_BYTES).map(drop),
        "schema" => Shape::Object.check(&value),
        _ => value.boolean().map(drop),
    })?;
    if is_named { Ok(()) } else { Err(ApiError::missing_required_parameter(node.path_of("name"))) }
}

/// Reads vLLM's `structured_outputs`, of which exactly one member may be set.
pub(super) fn read_structured_outputs(
    r: &mut GenerationOptions,
    node: &Node<'_, '_>,
    _: &ReadOptions,
) -> Result<(), ApiError> {
    const KEYS: &[&str] = &[
        "json",
        "regex",
        "choice",
        "grammar",
        "json_object",
        "structural_tag",
        "disable_fallback",
        "disable_any_whitespace",
        "disable_additional_properties",
        "whitespace_pattern",
    ];
    if node.json_type() == JsonType::Object {
        node.check_complexity(MAX_SCHEMA_VALUES)?;
    }
    node.only_members(KEYS, |key, value| {
        let spec = match key {
            _ if value.is_null() => return Ok(()),
            "json" => schema(&value)?,
            "regex" => ConstraintSpec::Regex(text(&value)?),
            "choice" => choice(&value)?,
            "grammar" => ConstraintSpec::from_grammar_text(text(&value)?),
            "json_object" if value.boolean()? => ConstraintSpec::JsonObject,
            "json_object" => return Ok(()),
            "structural_tag" => ConstraintSpec::StructuralTag(tree(&value)?),
            "whitespace_pattern" => return value.string(MAX_LABEL_BYTES).map(drop),
            _ => return value.boolean().map(drop),
        };
        r.constrain(value.path(), spec)
    })
}

/// Reads a JSON schema: `guided_json`, `json_schema`.
pub(super) fn read_schema(
    r: &mut GenerationOptions,
    node: &Node<'_, '_>,
    _: &ReadOptions,
) -> Result<(), ApiError> {
    let spec = schema(node)?;
    r.constrain(node.path(), spec)
}

/// Reads a regular expression: `guided_regex`, `regex`.
pub(super) fn read_regex(
    r: &mut GenerationOptions,
    node: &Node<'_, '_>,
    _: &ReadOptions,
) -> Result<(), ApiError> {
    let spec = ConstraintSpec::Regex(text(node)?);
    r.constrain(node.path(), spec)
}

/// Reads a list of texts: `guided_choice`.
pub(super) fn read_choice(
    r: &mut GenerationOptions,
    node: &Node<'_, '_>,
    _: &ReadOptions,
) -> Result<(), ApiError> {
    let spec = choice(node)?;
    r.constrain(node.path(), spec)
}

/// Reads a grammar in GBNF or Lark: `guided_grammar`, `grammar`, `ebnf`.
pub(super) fn read_grammar(
    r: &mut GenerationOptions,
    node: &Node<'_, '_>,
    _: &ReadOptions,
) -> Result<(), ApiError> {
    let text = text(node)?;
    if text.is_empty() {
        // llama.cpp's clients send an empty grammar for none.
        return Ok(());
    }
    r.constrain(node.path(), ConstraintSpec::from_grammar_text(text))
}

/// Reads `structural_tag`, in its form as a parameter of its own.
pub(super) fn read_structural_tag(
    r: &mut GenerationOptions,
    node: &Node<'_, '_>,
    _: &ReadOptions,
) -> Result<(), ApiError> {
    let spec = ConstraintSpec::StructuralTag(tree(node)?);
    r.constrain(node.path(), spec)
}

fn schema(node: &Node<'_, '_>) -> Result<ConstraintSpec, ApiError> {
    let schema = match node.json_type() {
        JsonType::Boolean => node.exact_tree()?,
        _ => tree(node)?,
    };
    Ok(ConstraintSpec::JsonSchema(schema))
}

fn text(node: &Node<'_, '_>) -> Result<String, ApiError> {
    Ok(node.string(MAX_TREE_BYTES)?.into_owned())
}

fn choice(node: &Node<'_, '_>) -> Result<ConstraintSpec, ApiError> {
    let mut choices = Vec::new();
    node.elements(MAX_CHOICES, |_, element| {
        choices.push(text(&element)?);
        Ok(())
    })?;
    if choices.is_empty() {
        return Err(ApiError::empty_array(node.path()));
    }
    Ok(ConstraintSpec::Choice(choices))
}

/// An object, or a string that contains one as JSON.
fn tree(node: &Node<'_, '_>) -> Result<Value, ApiError> {
    match node.json_type() {
        JsonType::Object => {
            node.check_complexity(MAX_SCHEMA_VALUES)?;
            node.exact_tree()
        }
        JsonType::String => {
            let text = text(node)?;
            node.check_complexity_of(&text, MAX_SCHEMA_VALUES)?;
            let tree: Option<Value> = exact_number::parse(&text).ok();
            tree.filter(Value::is_object).ok_or_else(|| {
                let reason = format!("Invalid '{}': the string does not hold a JSON object.", node.path());
                ApiError::invalid_value(node.path(), reason)
            })
        }
        _ => Err(node.wrong_type("an object or a string")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::field::{Bound, read_body};
    use crate::openai::generation_fields::GENERATION_FIELDS;

    fn read(members: &str) -> Result<Option<(String, ConstraintSpec)>, ApiError> {
        let body = format!("{{{members}}}");
        let mut request = GenerationOptions::default();
        let part = &mut Bound { fields: GENERATION_FIELDS, target: &mut request };
        read_body(body.as_bytes(), &mut [part], &ReadOptions::default())?;
        Ok(request.constraint().map(|constraint| (constraint.param.clone(), constraint.spec.clone())))
    }

    #[test]
    fn every_spelling_becomes_its_specification() {
        let schema = json!({"type": "object", "properties": {"b": {}, "a": {}}});
        let text = |spec: fn(String) -> ConstraintSpec| spec("a|b".to_owned());
        let choice = ConstraintSpec::Choice(vec!["a".to_owned(), "b".to_owned()]);
        let tag = json!({"type": "structural_tag", "format": {"type": "any_text"}});
        let gbnf = "root ::= \"a\"".to_owned();
        let quoted = |text: &str| serde_json::to_string(text).expect("a string");
        let named = |schema: &str| {
            format!(r#""response_format":{{"type":"json_schema","json_schema":{{"name":"x"{schema}}}}}"#)
        };
        let json_schema = || ConstraintSpec::JsonSchema(schema.clone());
        let tagged = || ConstraintSpec::StructuralTag(tag.clone());
        for (members, param, spec) in [
            (
                r#""response_format":{"type":"json_object"}"#.to_owned(),
                "response_format",
                ConstraintSpec::JsonObject,
            ),
            (named(&format!(r#","schema":{schema},"strict":true"#)), "response_format", json_schema()),
            (
                format!(r#""response_format":{{"type":"json_object","schema":{schema}}}"#),
                "response_format",
                json_schema(),
            ),
            (
                format!(r#""response_format":{{"type":"json_schema","schema":{schema}}}"#),
                "response_format",
                json_schema(),
            ),
            (
                r#""response_format":{"type":"json_object","schema":null}"#.to_owned(),
                "response_format",
                ConstraintSpec::JsonObject,
            ),
            (format!(r#""response_format":{tag}"#), "response_format", tagged()),
            (
                format!(r#""structured_outputs":{{"json":{schema}}}"#),
                "structured_outputs.json",
                json_schema(),
            ),
            (
                r#""structured_outputs":{"regex":"a|b","json":null}"#.to_owned(),
                "structured_outputs.regex",
                text(ConstraintSpec::Regex),
            ),
            (
                r#""structured_outputs":{"choice":["a","b"]}"#.to_owned(),
                "structured_outputs.choice",
                choice.clone(),
            ),
            (
                r#""structured_outputs":{"grammar":"a|b"}"#.to_owned(),
                "structured_outputs.grammar",
                text(ConstraintSpec::Lark),
            ),
            (
                r#""structured_outputs":{"json_object":true}"#.to_owned(),
                "structured_outputs.json_object",
                ConstraintSpec::JsonObject,
            ),
            (
                format!(r#""structured_outputs":{{"structural_tag":{}}}"#, quoted(&tag.to_string())),
                "structured_outputs.structural_tag",
                tagged(),
            ),
            (format!(r#""structural_tag":{tag}"#), "structural_tag", tagged()),
            (format!(r#""guided_json":{schema}"#), "guided_json", json_schema()),
            (format!(r#""guided_json":{}"#, quoted(&schema.to_string())), "guided_json", json_schema()),
            (r#""guided_json":true"#.to_owned(), "guided_json", ConstraintSpec::JsonSchema(json!(true))),
            (r#""guided_regex":"a|b""#.to_owned(), "guided_regex", text(ConstraintSpec::Regex)),
            (r#""guided_choice":["a","b"]"#.to_owned(), "guided_choice", choice),
            (
                format!(r#""guided_grammar":{}"#, quoted(&gbnf)),
                "guided_grammar",
                ConstraintSpec::Gbnf(gbnf.clone()),
            ),
            (format!(r#""grammar":{}"#, quoted(&gbnf)), "grammar", ConstraintSpec::Gbnf(gbnf.clone())),
            (format!(r#""ebnf":{}"#, quoted(&gbnf)), "ebnf", ConstraintSpec::Gbnf(gbnf.clone())),
            (format!(r#""json_schema":{schema}"#), "json_schema", json_schema()),
            (r#""regex":"a|b""#.to_owned(), "regex", text(ConstraintSpec::Regex)),
        ] {
            assert_eq!(read(&members), Ok(Some((param.to_owned(), spec))), "{members}");
        }
    }

    #[test]
    fn what_asks_for_nothing_constrains_nothing() {
        for members in [
            r#""response_format":{"type":"text"},"structured_outputs":{},"guided_json":null"#,
            r#""structured_outputs":{"json":null,"json_object":false,"disable_any_whitespace":true}"#,
            r#""grammar":"","guided_choice":null"#,
        ] {
            assert_eq!(read(members), Ok(None), "{members}");
        }
    }

    #[test]
    fn wrong_types_and_conflicts_are_named() {
        for (members, param, code) in [
            (r#""guided_json":1"#, "guided_json", "invalid_type"),
            (r#""guided_json":[]"#, "guided_json", "invalid_type"),
            (r#""guided_json":"{""#, "guided_json", "invalid_value"),
            (r#""guided_json":"[1]""#, "guided_json", "invalid_value"),
            (r#""guided_regex":{}"#, "guided_regex", "invalid_type"),
            (r#""guided_choice":[]"#, "guided_choice", "empty_array"),
            (r#""guided_choice":["a",1]"#, "guided_choice[1]", "invalid_type"),
            (r#""guided_choice":"a""#, "guided_choice", "invalid_type"),
            (r#""grammar":[]"#, "grammar", "invalid_type"),
            (r#""structural_tag":1"#, "structural_tag", "invalid_type"),
            (r#""structured_outputs":{"json_object":1}"#, "structured_outputs.json_object", "invalid_type"),
            (r#""structured_outputs":{"mood":1}"#, "structured_outputs.mood", "unknown_parameter"),
            (r#""structured_outputs":[]"#, "structured_outputs", "invalid_type"),
            (
                r#""response_format":{"type":"json_schema","json_schema":{"name":"x"}}"#,
                "response_format.json_schema.schema",
                "missing_required_parameter",
            ),
            (
                r#""response_format":{"type":"json_schema","json_schema":{"name":"x","schema":null}}"#,
                "response_format.json_schema.schema",
                "missing_required_parameter",
            ),
            (
                r#""response_format":{"type":"json_schema"}"#,
                "response_format.json_schema",
                "missing_required_parameter",
            ),
            (
                r#""response_format":{"type":"json_object","schema":[]}"#,
                "response_format.schema",
                "invalid_type",
            ),
            (
                r#""structured_outputs":{"json":{},"regex":"a"}"#,
                "structured_outputs.regex",
                "mutually_exclusive",
            ),
            (r#""guided_regex":"a","grammar":"b""#, "grammar", "mutually_exclusive"),
            (
                r#""json_schema":{},"response_format":{"type":"json_object"}"#,
                "response_format",
                "mutually_exclusive",
            ),
        ] {
            let error = read(members).expect_err(members);
            assert_eq!((error.param(), error.code()), (Some(param), code), "{members}: {error}");
        }
        let deep = format!("{}1{}", r#"{"a":"#.repeat(60), "}".repeat(60));
        for members in [
            format!(r#""guided_json":{deep}"#),
            format!(r#""guided_json":{}"#, serde_json::to_string(&deep).expect("a string")),
        ] {
            let error = read(&members).expect_err("too deep");
            assert_eq!((error.param(), error.code()), (Some("guided_json"), "schema_too_complex"));
        }
    }
}
