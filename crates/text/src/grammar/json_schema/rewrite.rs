//! Rewrites keywords that llguidance does not support as equivalent ones. Does not know which are supported
//! in the end.

use serde_json::{Map, Value, json};

use crate::exact_number;

/// All JSON types.
const TYPES: &[&str] = &["array", "boolean", "null", "number", "object", "string"];
/// Keywords without effect on validation.
const ANNOTATIONS: &[&str] = &["$comment", "default", "deprecated", "description", "examples", "title"];
/// Value from which an upper bound on a count has no effect, since no answer reaches it.
const UNREACHABLE: f64 = 1e9;
/// Lower bounds on counts.
const AT_LEAST: [&str; 3] = ["minItems", "minLength", "minProperties"];
/// Upper bounds on counts.
const AT_MOST: [&str; 3] = ["maxItems", "maxLength", "maxProperties"];
/// Keywords about strings only, without effect on other types.
const OF_STRINGS: [&str; 4] = ["format", "maxLength", "minLength", "pattern"];
/// Keywords whose schemas determine which properties and items are evaluated.
const APPLICATORS: &[&str] =
    &["$dynamicRef", "$ref", "allOf", "anyOf", "contains", "dependentSchemas", "else", "if", "oneOf", "then"];

/// Adds a condition to a schema.
pub(super) fn and(schema: &mut Map<String, Value>, condition: Value) {
    let all_of = schema.entry("allOf").or_insert_with(|| json!([]));
    all_of.as_array_mut().into_iter().for_each(|list| list.push(condition.clone()));
}

/// Rewrites the keywords of one schema, not of nested ones. Keywords without an equivalent stay.
pub(super) fn keywords(schema: &mut Map<String, Value>) {
    unevaluated(schema);
    without_effect(schema);
    dependencies(schema);
    condition(schema);
    if let Some(negated) = schema.get("not").and_then(negation) {
        schema.shift_remove("not");
        and(schema, negated);
    }
    match schema.get("propertyNames") {
        Some(names) if holds_for_strings(names) => drop(schema.shift_remove("propertyNames")),
        Some(Value::Bool(false)) => {
            schema.shift_remove("propertyNames");
            and(schema, json!({"maxProperties": 0}));
        }
        _ => {}
    }
    if !schema.contains_key("$anchor")
        && let Some(anchor) = schema.shift_remove("$dynamicAnchor")
    {
        // The two differ only for `$dynamicRef`.
        schema.insert("$anchor".to_owned(), anchor);
    }
}

/// Whether every string satisfies a schema.
fn holds_for_strings(schema: &Value) -> bool {
    let Value::Object(members) = schema else { return says_nothing(schema) };
    members.iter().all(|(keyword, value)| match keyword.as_str() {
        "type" => value == "string" || value.as_array().is_some_and(|all| all.contains(&"string".into())),
        "pattern" => value == "" || value == ".*",
        "minLength" => exact_number::as_f64(value) == Some(0.0),
        "maxLength" => exact_number::as_f64(value).is_some_and(|n| n >= UNREACHABLE),
        other => ANNOTATIONS.contains(&other),
    })
}

/// Whether every value satisfies a schema.
fn says_nothing(schema: &Value) -> bool {
    match schema {
        Value::Bool(is_true) => *is_true,
        Value::Object(members) => members.keys().all(|keyword| ANNOTATIONS.contains(&keyword.as_str())),
        _ => false,
    }
}

fn unevaluated(schema: &mut Map<String, Value>) {
    for (keyword, known) in [("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")]
    {
        let Some(value) = schema.get(keyword) else { continue };
        let is_plain = !APPLICATORS.iter().any(|other| schema.contains_key(*other))
            && !schema.contains_key("additionalItems");
        if says_nothing(value) || is_plain && schema.contains_key(known) {
            schema.shift_remove(keyword);
        } else if is_plain && let Some(value) = schema.shift_remove(keyword) {
            schema.insert(known.to_owned(), value);
        }
    }
}

/// Drops keywords that have no effect beside the others.
fn without_effect(schema: &mut Map<String, Value>) {
    schema.retain(|keyword, value| {
        let keyword = keyword.as_str();
        let n = || exact_number::as_f64(value);
        !(AT_LEAST.contains(&keyword) && n() == Some(0.0)
            || AT_MOST.contains(&keyword) && n().is_some_and(|n| n >= UNREACHABLE))
    });
    let is_string = |kind: &Value| kind == "string";
    let may_be_string = schema.get("type").is_none_or(|kind| match kind {
        Value::Array(kinds) => kinds.iter().any(is_string),
        kind => is_string(kind),
    });
    if !may_be_string {
        schema.retain(|keyword, _| !OF_STRINGS.contains(&keyword.as_str()));
    }
    contains_anything(schema);
    let n = |keyword: &str| schema.get(keyword).and_then(exact_number::as_f64);
    let has_one_item = n("maxItems").is_some_and(|n| n <= 1.0);
    let contains = schema.get("contains").is_some();
    let may_contain_none = n("minContains") == Some(0.0) && schema.get("maxContains").is_none();
    if has_one_item || schema.get("uniqueItems") == Some(&Value::Bool(false)) {
        schema.shift_remove("uniqueItems");
    }
    if may_contain_none {
        schema.shift_remove("contains");
    }
    if !contains || may_contain_none {
        schema.shift_remove("minContains");
        schema.shift_remove("maxContains");
    }
    let has_if = schema.contains_key("if");
    let has_branch = schema.contains_key("then") || schema.contains_key("else");
    if has_if != has_branch {
        for keyword in ["if", "then", "else"] {
            schema.shift_remove(keyword);
        }
    }
}

/// Rewrites `contains` of any item as a bound on the number of items.
fn contains_anything(schema: &mut Map<String, Value>) {
    if !schema.get("contains").is_some_and(says_nothing) {
        return;
    }
    schema.shift_remove("contains");
    let at_least = schema.shift_remove("minContains").unwrap_or_else(|| Value::from(1));
    and(schema, json!({ "minItems": at_least }));
    if let Some(at_most) = schema.shift_remove("maxContains") {
        and(schema, json!({ "maxItems": at_most }));
    }
}

/// Rewrites dependent schemas: either the property is absent, or the schema applies.
fn dependencies(schema: &mut Map<String, Value>) {
    for keyword in ["dependentRequired", "dependentSchemas", "dependencies"] {
        let Some(Value::Object(all)) = schema.get(keyword) else { continue };
        let is_possible = all.values().all(|one| match one {
            Value::Array(names) => keyword != "dependentSchemas" && names.iter().all(Value::is_string),
            Value::Object(_) | Value::Bool(_) => keyword != "dependentRequired",
            _ => false,
        });
        let Some(Value::Object(all)) = is_possible.then(|| schema.shift_remove(keyword)).flatten() else {
            continue;
        };
        for (name, consequence) in all {
            let consequence = match consequence {
                Value::Array(names) => json!({ "required": names }),
                other => other,
            };
            if !says_nothing(&consequence) {
                and(schema, json!({"anyOf": [{"properties": {name: false}}, consequence]}));
            }
        }
    }
}

/// Rewrites `if`, `then` and `else` as two options, if the condition can be negated.
fn condition(schema: &mut Map<String, Value>) {
    let Some(negated) = schema.get("if").and_then(negation) else { return };
    let is = schema.shift_remove("if").unwrap_or_default();
    let mut branch = |keyword: &str| schema.shift_remove(keyword).unwrap_or(Value::Bool(true));
    let (then, otherwise) = (branch("then"), branch("else"));
    and(schema, json!({"anyOf": [{"allOf": [is, then]}, {"allOf": [negated, otherwise]}]}));
}

/// Negates a schema; `None` if that cannot be expressed.
fn negation(schema: &Value) -> Option<Value> {
    let members = match schema {
        Value::Bool(is_true) => return Some(Value::Bool(!is_true)),
        Value::Object(members) => members,
        _ => return None,
    };
    let telling = members.iter().filter(|(keyword, _)| !ANNOTATIONS.contains(&keyword.as_str()));
    // At least one of them does not apply.
    let mut options =
        telling.map(|(keyword, value)| negation_of(keyword, value)).collect::<Option<Vec<_>>>()?;
    Some(match options.len() {
        0 => Value::Bool(false),
        1 => options.remove(0),
        _ => json!({ "anyOf": options }),
    })
}

/// Negates one keyword.
fn negation_of(keyword: &str, value: &Value) -> Option<Value> {
    let each = || value.as_array()?.iter().map(negation).collect::<Option<Vec<_>>>();
    let absent = |name: &Value| Some(json!({"type": "object", "properties": {name.as_str()?: false}}));
    match keyword {
        "not" => Some(value.clone()),
        "anyOf" => Some(json!({ "allOf": each()? })),
        "allOf" => Some(json!({ "anyOf": each()? })),
        "required" => {
            let options = value.as_array()?.iter().map(absent).collect::<Option<Vec<_>>>()?;
            Some(json!({ "anyOf": options }))
        }
        "properties" => {
            let fails = |(name, schema): (&String, &Value)| {
                Some(json!({"type": "object", "required": [name], "properties": {name: negation(schema)?}}))
            };
            let options = value.as_object()?.iter().map(fails).collect::<Option<Vec<_>>>()?;
            Some(json!({ "anyOf": options }))
        }
        "type" => {
            let is_one =
                |name: &str| value == name || value.as_array().is_some_and(|all| all.contains(&name.into()));
            // Non-integer numbers have no type name.
            let is_known = |name: &str| TYPES.contains(&name);
            let names = value.as_array().map_or_else(|| vec![value], |all| all.iter().collect());
            if !names.iter().all(|name| name.as_str().is_some_and(is_known)) {
                return None;
            }
            let others: Vec<&str> = TYPES.iter().copied().filter(|name| !is_one(name)).collect();
            Some(if others.is_empty() { Value::Bool(false) } else { json!({ "type": others }) })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keywords_become_others_that_say_the_same() {
        for (schema, expected) in [
            (json!({"uniqueItems": false}), json!({})),
            (json!({"uniqueItems": true, "maxItems": 1}), json!({"maxItems": 1})),
            (json!({"then": {}}), json!({})),
            (json!({"if": {"const": 1}}), json!({})),
            (
                json!({"if": {"type": "string"}, "then": {"minLength": 1}}),
                json!({"allOf": [{"anyOf": [
                    {"allOf": [{"type": "string"}, {"minLength": 1}]},
                    {"allOf": [{"type": ["array", "boolean", "null", "number", "object"]}, true]}]}]}),
            ),
            (
                json!({"dependentRequired": {"a": ["b"]}}),
                json!({"allOf": [{"anyOf": [{"properties": {"a": false}}, {"required": ["b"]}]}]}),
            ),
            (json!({"unevaluatedProperties": false}), json!({"additionalProperties": false})),
            (json!({"not": {"not": {"type": "null"}}}), json!({"allOf": [{"type": "null"}]})),
            (
                json!({"not": {"required": ["a"]}}),
                json!({"allOf": [{"anyOf": [{"type": "object", "properties": {"a": false}}]}]}),
            ),
        ] {
            let mut members = schema.as_object().cloned().unwrap_or_default();
            keywords(&mut members);
            assert_eq!(Value::Object(members), expected, "{schema}");
        }
        for schema in [
            json!({"not": {"const": 1}}),
            json!({"not": {"type": "integer"}}),
            json!({"uniqueItems": true, "maxItems": 2}),
            json!({"if": {"const": 1}, "then": {}}),
            json!({"unevaluatedProperties": false, "anyOf": []}),
            json!({"dependentRequired": {"a": [1]}}),
        ] {
            let mut members = schema.as_object().cloned().unwrap_or_default();
            keywords(&mut members);
            assert_eq!(Value::Object(members), schema, "it cannot be said otherwise");
        }
    }
}
