//! A request's tools as parsers need them: names, and types of the parameters' values. Does not validate
//! values.

use std::cell::Cell;
use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::exact_number;

/// Maximum nesting of visited schemas (`anyOf`).
const MAX_DEPTH: usize = 8;
/// Maximum number of schemas visited for one parameter: references may reach the same one repeatedly.
const MAX_SCHEMAS: usize = 1000;

/// Types of a parameter's values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Kinds(u8);

impl Kinds {
    pub(crate) const STRING: Self = Self(1);
    pub(crate) const INTEGER: Self = Self(2);
    pub(crate) const NUMBER: Self = Self(4);
    pub(crate) const BOOLEAN: Self = Self(8);
    pub(crate) const NULL: Self = Self(16);
    /// An object or a list.
    pub(crate) const TREE: Self = Self(32);

    /// Whether `kind` is among these types.
    pub(crate) fn has(self, kind: Self) -> bool {
        self.0 & kind.0 != 0
    }

    fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn named(name: &str) -> Self {
        match name {
            "string" => Self::STRING,
            "integer" => Self::INTEGER,
            "number" => Self::NUMBER,
            "boolean" => Self::BOOLEAN,
            "null" => Self::NULL,
            "object" | "array" => Self::TREE,
            _ => Self::default(),
        }
    }

    fn of_value(value: &Value) -> Self {
        match value {
            Value::Object(members) if let Some(text) = exact_number::exact_text(members) => {
                if text.contains(['.', 'e', 'E']) { Self::NUMBER } else { Self::INTEGER }
            }
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(number) if number.is_f64() => Self::NUMBER,
            Value::Number(_) => Self::INTEGER,
            Value::String(_) => Self::STRING,
            Value::Array(_) | Value::Object(_) => Self::TREE,
        }
    }

    /// The types of a parameter with this schema; strings if it does not say. References point into `root`.
    pub(crate) fn of_parameter(schema: &Value, root: &Value) -> Self {
        let kinds = Self::of_schema(schema, root, 0, &Cell::new(MAX_SCHEMAS));
        if kinds == Self::default() { Self::STRING } else { kinds }
    }

    /// The types in a schema; empty if it does not say.
    fn of_schema(schema: &Value, root: &Value, depth: usize, n_left: &Cell<usize>) -> Self {
        if depth == MAX_DEPTH || n_left.get() == 0 {
            return Self::default();
        }
        n_left.set(n_left.get() - 1);
        if let Some(reference) = schema["$ref"].as_str() {
            let target = reference.strip_prefix('#').and_then(|path| root.pointer(path));
            return target.map_or(Self::default(), |target| Self::of_schema(target, root, depth + 1, n_left));
        }
        let all = |list: &Value, of: &dyn Fn(&Value) -> Self| {
            let items = list.as_array().into_iter().flatten();
            items.fold(Self::default(), |kinds, item| kinds.with(of(item)))
        };
        let named = |name: &Value| name.as_str().map_or(Self::default(), Self::named);
        let kinds = named(&schema["type"]).with(all(&schema["type"], &named));
        if kinds != Self::default() {
            return kinds;
        }
        let inside = |schema: &Value| Self::of_schema(schema, root, depth + 1, n_left);
        let constant = schema.get("const").map_or(Self::default(), Self::of_value);
        ["anyOf", "oneOf", "allOf"]
            .into_iter()
            .map(|key| all(&schema[key], &inside))
            .fold(constant.with(all(&schema["enum"], &Self::of_value)), Self::with)
    }
}

/// The tools of a request.
#[derive(Debug, Clone, Default)]
pub struct ToolSchemas {
    /// Types by tool and parameter.
    tools: BTreeMap<String, BTreeMap<String, Kinds>>,
}

impl ToolSchemas {
    /// Reads the `tools` of a chat completion. Ignores entries that are not in the form of OpenAI's API.
    pub fn new(tools: &[Value]) -> Self {
        let read = |tool: &Value| {
            let function = &tool["function"];
            let root = &function["parameters"];
            let none = Map::new();
            let parameters = root["properties"].as_object().unwrap_or(&none);
            let kinds =
                parameters.iter().map(|(name, schema)| (name.clone(), Kinds::of_parameter(schema, root)));
            Some((function["name"].as_str()?.to_owned(), kinds.collect()))
        };
        Self { tools: tools.iter().filter_map(read).collect() }
    }

    /// Whether there is a tool of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.tools.contains_key(name)
    }

    /// Whether the tool names this parameter.
    pub(super) fn has_parameter(&self, tool: &str, parameter: &str) -> bool {
        self.tools.get(tool).is_some_and(|parameters| parameters.contains_key(parameter))
    }

    /// The types of a parameter's values; strings if unknown.
    pub(super) fn kinds(&self, tool: &str, parameter: &str) -> Kinds {
        let known = self.tools.get(tool).and_then(|parameters| parameters.get(parameter));
        known.copied().unwrap_or(Kinds::STRING)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn kinds_are_found_wherever_a_schema_says_them() {
        let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {
            "type": "object",
            "$defs": {"Size": {"enum": [1, 2.5, "big"]}, "Loop": {"$ref": "#/$defs/Loop"}},
            "properties": {
                "city": {"type": "string"},
                "n": {"type": ["integer", "null"]},
                "when": {"anyOf": [{"type": "number"}, {"const": true}]},
                "size": {"$ref": "#/$defs/Size"},
                "loop": {"$ref": "#/$defs/Loop"},
                "any": {},
                "tags": {"type": "array"},
            },
        }}}]);
        let tools = ToolSchemas::new(tools.as_array().expect("a list"));
        let expected = [
            ("city", Kinds::STRING),
            ("n", Kinds::INTEGER.with(Kinds::NULL)),
            ("when", Kinds::NUMBER.with(Kinds::BOOLEAN)),
            ("size", Kinds::INTEGER.with(Kinds::NUMBER).with(Kinds::STRING)),
            ("loop", Kinds::STRING),
            ("any", Kinds::STRING),
            ("tags", Kinds::TREE),
            ("unknown", Kinds::STRING),
        ];
        for (parameter, kinds) in expected {
            assert_eq!(tools.kinds("f", parameter), kinds, "{parameter}");
        }
        assert!(tools.has("f") && !tools.has("g"));
    }
}
