//! References to schemas at places where no keyword puts a schema, such as `#/x/y`. Moves these schemas
//! under `$defs`, so that they are checked like all others. Does not know references to other documents.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::{MAX_VALUES, SCHEMAS, too_complex};
use crate::grammar::GrammarError;

/// Keywords whose value is a schema.
const ONE: &[&str] = &[
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Keywords whose value is an object of schemas.
const MAP: &[&str] =
    &["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];

/// Moves referenced schemas at hidden places to `$defs`.
///
/// # Errors
/// [`GrammarError::TooComplex`] if the schema becomes too large.
pub(super) fn hoist(root: &mut Map<String, Value>) -> Result<(), GrammarError> {
    if !may_hide(root) {
        return Ok(());
    }
    let mut moved: HashMap<String, String> = HashMap::new();
    let mut n_copied = 0;
    loop {
        let mut places = HashSet::new();
        let mut references = Vec::new();
        visit(root, "#", &mut |schema, path| {
            places.insert(path.to_owned());
            if let Some(Value::String(reference)) = schema.get_mut("$ref") {
                match moved.get(reference.as_str()) {
                    Some(name) => *reference = format!("#/$defs/{name}"),
                    None => references.push(reference.clone()),
                }
            }
        });
        let before = moved.len();
        for reference in references {
            let path = percent_decoded(&reference);
            let target = path.strip_prefix("#/").and_then(|at| pointed(root, at));
            let Some(target) = target.filter(|_| !places.contains(&path)) else { continue };
            if moved.contains_key(&reference) {
                continue;
            }
            n_copied += n_values(target);
            if n_copied > MAX_VALUES {
                return Err(too_complex(format!("references to more than {MAX_VALUES} values")));
            }
            let (name, target) = (format!("throng.hidden.{}", moved.len()), target.clone());
            let defs = root.entry("$defs").or_insert_with(|| Value::Object(Map::new()));
            if let Some(defs) = defs.as_object_mut() {
                defs.insert(name.clone(), target);
                moved.insert(reference, name);
            }
        }
        if moved.len() == before {
            // No schema was moved after this round.
            return Ok(());
        }
    }
}

/// Whether a reference points to anything but the whole schema or a definition.
fn may_hide(root: &Map<String, Value>) -> bool {
    let mut stack: Vec<&Value> = root.values().collect();
    let is_plain = |reference: &str| {
        let name = ["#/$defs/", "#/definitions/"].iter().find_map(|begin| reference.strip_prefix(begin));
        reference == "#" || name.is_some_and(|name| !name.contains('/'))
    };
    let hides = |members: &Map<String, Value>| {
        members.get("$ref").and_then(Value::as_str).is_some_and(|reference| !is_plain(reference))
    };
    if hides(root) {
        return true;
    }
    while let Some(value) = stack.pop() {
        match value {
            Value::Object(members) if hides(members) => return true,
            Value::Object(members) => stack.extend(members.values()),
            Value::Array(elements) => stack.extend(elements),
            _ => {}
        }
    }
    false
}

/// Calls `each` with every schema at a regular place, and with that place.
fn visit(schema: &mut Map<String, Value>, path: &str, each: &mut dyn FnMut(&mut Map<String, Value>, &str)) {
    each(schema, path);
    for (keyword, value) in schema.iter_mut() {
        let word = keyword.as_str();
        let at = format!("{path}/{}", escaped(word));
        match value {
            Value::Array(schemas) if SCHEMAS.contains(&word) => {
                for (idx, schema) in schemas.iter_mut().enumerate() {
                    if let Value::Object(schema) = schema {
                        visit(schema, &format!("{at}/{idx}"), each);
                    }
                }
            }
            Value::Object(schemas) if MAP.contains(&word) => {
                for (name, schema) in schemas.iter_mut() {
                    if let Value::Object(schema) = schema {
                        visit(schema, &format!("{at}/{}", escaped(name)), each);
                    }
                }
            }
            Value::Object(schema) if ONE.contains(&word) => visit(schema, &at, each),
            _ => {}
        }
    }
}

fn pointed<'v>(root: &'v Map<String, Value>, at: &str) -> Option<&'v Value> {
    let (first, rest) = at.split_once('/').map_or((at, None), |(first, rest)| (first, Some(rest)));
    let value = root.get(&first.replace("~1", "/").replace("~0", "~"))?;
    match rest {
        None => Some(value),
        Some(rest) => value.pointer(&format!("/{rest}")),
    }
}

fn n_values(value: &Value) -> usize {
    let (mut n, mut stack) = (0, vec![value]);
    while let Some(value) = stack.pop() {
        n += 1;
        match value {
            Value::Array(elements) => stack.extend(elements),
            Value::Object(members) => stack.extend(members.values()),
            _ => {}
        }
    }
    n
}

/// Escapes a key for a JSON pointer (RFC 6901).
pub(super) fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// Decodes a fragment; unchanged if its escapes are invalid.
fn percent_decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [first, after @ ..] = rest {
        let code = after.get(..2).filter(|_| *first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hidden_schemas_get_places() {
        let mut schema = json!({
            "properties": {"a": {"$ref": "#/x/y"}, "b": {"$ref": "#/properties/a"}, "c": {"$ref": "#/x/y%20z"},
                "d": {"$ref": "#/x/y"}, "e": {"$ref": "#/nowhere"}, "f": {"$ref": "#/enum/0"}},
            "enum": [{"const": 1}],
            "x": {"y": {"$ref": "#/x/z"}, "z": {"const": 2}, "y z": {"const": 3}},
        });
        hoist(schema.as_object_mut().expect("an object")).expect("small");
        let reference =
            |pointer: &str| schema.pointer(pointer).and_then(Value::as_str).map(ToOwned::to_owned);
        assert_eq!(reference("/properties/b/$ref").as_deref(), Some("#/properties/a"));
        assert_eq!(reference("/properties/e/$ref").as_deref(), Some("#/nowhere"));
        for (name, expected) in [("c", json!({"const": 3})), ("f", json!({"const": 1}))] {
            let path = reference(&format!("/properties/{name}/$ref")).expect("a reference");
            assert!(path.starts_with("#/$defs/throng.hidden."), "{path}");
            assert_eq!(schema.pointer(&path[1..]), Some(&expected));
        }
        let first = reference("/properties/a/$ref").expect("a reference");
        assert_eq!(reference("/properties/d/$ref"), Some(first.clone()));
        let second = reference(&format!("{}/$ref", &first[1..])).expect("a reference");
        assert_eq!(schema.pointer(&second[1..]), Some(&json!({"const": 2})));
    }
}
