//! Checks whether schemas exclude each other, so that `oneOf` is equivalent to `anyOf`. Returns false if
//! that is not certain.

use std::cell::Cell;

use serde_json::{Map, Value};

use crate::exact_number;

/// Maximum nesting of schemas, references included.
const MAX_DEPTH: usize = 12;
/// Maximum number of pairs of schemas that are compared for one schema.
const MAX_PAIRS: usize = 20_000;

/// Mutually exclusive types; integers are numbers.
const TYPES: &[&str] = &["array", "boolean", "null", "number", "object", "string"];

/// Compares the schemas of one document.
pub(super) struct Disjoint<'r> {
    /// Schema that references point into.
    root: &'r Value,
    /// Number of pairs that may still be compared.
    n_left: Cell<usize>,
}

impl<'r> Disjoint<'r> {
    pub(super) fn new(root: &'r Value) -> Self {
        Self { root, n_left: Cell::new(MAX_PAIRS) }
    }

    /// Whether no value satisfies two of the schemas.
    pub(super) fn all(&self, schemas: &[Value]) -> bool {
        let rest = |idx: usize| &schemas[idx + 1..];
        schemas.iter().enumerate().all(|(idx, one)| rest(idx).iter().all(|other| self.pair(one, other, 0)))
    }

    /// Whether no value satisfies both.
    fn pair(&self, one: &Value, other: &Value, depth: usize) -> bool {
        let n_left = self.n_left.get();
        if depth == MAX_DEPTH || n_left == 0 {
            return false;
        }
        self.n_left.set(n_left - 1);
        let (a, b) = match (one, other) {
            (Value::Bool(false), _) | (_, Value::Bool(false)) => return true,
            (Value::Object(a), Value::Object(b)) => (a, b),
            _ => return false,
        };
        self.inside(a, other, depth) || self.inside(b, one, depth) || self.by_type(a, b, depth)
    }

    /// Whether `other` excludes the target of `schema`, one of its `allOf`, or all its options.
    fn inside(&self, schema: &Map<String, Value>, other: &Value, depth: usize) -> bool {
        let list = |keyword: &str| schema.get(keyword).and_then(Value::as_array);
        let excludes = |one: &Value| self.pair(one, other, depth + 1);
        let target = schema.get("$ref").and_then(|reference| self.target(reference));
        target.is_some_and(excludes)
            || list("allOf").is_some_and(|all| all.iter().any(excludes))
            || ["anyOf", "oneOf"]
                .into_iter()
                .filter_map(list)
                .any(|all| !all.is_empty() && all.iter().all(excludes))
    }

    /// Whether no type has values that satisfy both.
    fn by_type(&self, a: &Map<String, Value>, b: &Map<String, Value>, depth: usize) -> bool {
        if let (Some(of_a), Some(of_b)) = (constants(a), constants(b)) {
            return !of_a.iter().any(|one| of_b.iter().any(|other| is_equal(one, other)));
        }
        TYPES.iter().filter(|name| has_type(a, name) && has_type(b, name)).all(|name| match *name {
            "number" => is_above(a, "minimum", b, "maximum") || is_above(b, "minimum", a, "maximum"),
            "string" => is_above(a, "minLength", b, "maxLength") || is_above(b, "minLength", a, "maxLength"),
            "array" => is_above(a, "minItems", b, "maxItems") || is_above(b, "minItems", a, "maxItems"),
            "object" => self.objects(a, b, depth) || self.objects(b, a, depth),
            _ => false,
        })
    }

    /// Whether a property that `a` requires differs in both, or must not be in `b`.
    fn objects(&self, a: &Map<String, Value>, b: &Map<String, Value>, depth: usize) -> bool {
        let required = a.get("required").and_then(Value::as_array).into_iter().flatten();
        required.filter_map(Value::as_str).any(|name| {
            let of = |schema: &Map<String, Value>| {
                let known = schema.get("properties").and_then(|all| all.get(name));
                let has_patterns = schema.contains_key("patternProperties");
                known.or_else(|| schema.get("additionalProperties").filter(|_| !has_patterns)).cloned()
            };
            match (of(a), of(b)) {
                (_, Some(Value::Bool(false))) => true,
                (Some(one), Some(other)) => self.pair(&one, &other, depth + 1),
                _ => false,
            }
        })
    }

    fn target(&self, reference: &Value) -> Option<&'r Value> {
        self.root.pointer(reference.as_str()?.strip_prefix('#')?)
    }
}

/// The values of `const` or `enum`.
fn constants(schema: &Map<String, Value>) -> Option<&[Value]> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(std::slice::from_ref(value)),
        (None, Some(Value::Array(values))) => Some(values),
        _ => None,
    }
}

/// Whether JSON Schema considers both equal. Numbers are compared as doubles, which errs on the side of
/// equality.
fn is_equal(one: &Value, other: &Value) -> bool {
    let (a, b) = (exact_number::as_f64(one), exact_number::as_f64(other));
    match (one, other) {
        _ if a.is_some() || b.is_some() => a == b,
        (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => true,
        _ => one == other,
    }
}

/// Whether values of a type may satisfy the schema, judged by its own keywords.
fn has_type(schema: &Map<String, Value>, name: &str) -> bool {
    let is_named = |one: &Value| one == name || name == "number" && one == "integer";
    let is_of = |value: &Value| match value {
        Value::Object(members) if exact_number::exact_text(members).is_some() => name == "number",
        Value::Null => name == "null",
        Value::Bool(_) => name == "boolean",
        Value::Number(_) => name == "number",
        Value::String(_) => name == "string",
        Value::Array(_) => name == "array",
        Value::Object(_) => name == "object",
    };
    let by_type = match schema.get("type") {
        Some(Value::Array(names)) => names.iter().any(is_named),
        Some(one) => is_named(one),
        None => true,
    };
    by_type && constants(schema).is_none_or(|values| values.iter().any(is_of))
}

/// Whether the lower bound of `a` is above the upper bound of `b`.
fn is_above(a: &Map<String, Value>, low: &str, b: &Map<String, Value>, high: &str) -> bool {
    let bound =
        |schema: &Map<String, Value>, keyword: &str| schema.get(keyword).and_then(exact_number::as_f64);
    matches!((bound(a, low), bound(b, high)), (Some(low), Some(high)) if low > high)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn schemas_exclude_each_other_by_type_constant_bounds_and_required_properties() {
        let root = json!({"$defs": {
            "cat": {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]},
            "dog": {"type": "object", "properties": {"kind": {"enum": ["dog", "wolf"]}}, "required": ["kind"]},
            "loop": {"$ref": "#/$defs/loop"},
        }});
        let disjoint = Disjoint::new(&root);
        for (schemas, expected) in [
            (json!([{"type": "string"}, {"type": "integer"}]), true),
            (json!([{"type": "number"}, {"type": "integer"}]), false),
            (json!([{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}]), true),
            (json!([{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/cat"}]), false),
            (json!([{"$ref": "#/$defs/loop"}, {"type": "string"}]), false),
            (json!([{"const": 1}, {"const": 1.0}]), false),
            (json!([{"const": 1}, {"enum": [2, "1"]}]), true),
            (json!([{"type": "integer", "maximum": 4}, {"type": "integer", "minimum": 5}]), true),
            (json!([{"maximum": 4}, {"minimum": 5}]), false),
            (json!([{"anyOf": [{"type": "null"}, {"type": "string"}]}, {"type": "boolean"}]), true),
            (
                json!([{"properties": {"a": {"const": 1}}, "required": ["a"]},
                    {"properties": {"a": {"const": 2}}, "required": ["a"]}]),
                false,
            ),
            (
                json!([{"type": "object", "properties": {"a": {}}, "required": ["a"]},
                    {"type": "object", "properties": {"b": {}}, "additionalProperties": false}]),
                true,
            ),
            (
                json!([{"type": "object", "properties": {"a": {}}, "required": ["a"]},
                    {"type": "object", "properties": {"b": {}}, "required": ["b"]}]),
                false,
            ),
        ] {
            assert_eq!(disjoint.all(schemas.as_array().expect("a list")), expected, "{schemas}");
        }
    }
}
