//! Replaces a schema's conditions on numbers by primes under `multipleOf`. Does not know their later use.

use serde_json::{Map, Value, json};

use super::super::{OPTIONS_KEY, SCHEMA, SCHEMA_MAP, SCHEMAS, intersections, rewrite};
use super::set::NumberSet;
use super::{KEYWORDS, Numbers, read};
use crate::exact_number;
use crate::grammar::GrammarError;

/// Keywords that affect llguidance, and those that contain schemas. All others are annotations:
/// unenforceable keywords were refused before.
const KEPT: &[&str] = &[
    "$anchor",
    "$id",
    "$ref",
    "$schema",
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "$defs",
    "definitions",
    "enum",
    "format",
    "id",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "minItems",
    "minLength",
    "minProperties",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "required",
    "type",
];

/// All types except numbers.
const OTHER_TYPES: [&str; 5] = ["array", "boolean", "null", "object", "string"];

impl Numbers {
    /// Converts a schema checked by [`super::super::prepare`], or a part of one, into the form for
    /// llguidance.
    ///
    /// # Errors
    /// [`GrammarError::TooComplex`].
    pub(in crate::grammar) fn lower(&mut self, mut schema: Value) -> Result<Value, GrammarError> {
        let options = schema.as_object_mut().and_then(|members| members.shift_remove(OPTIONS_KEY));
        self.schema(&mut schema)?;
        if !self.is_empty() {
            intersections::check_products(&schema, self.sets.keys().copied())?;
        }
        if let (Value::Object(members), Some(options)) = (&mut schema, options) {
            members.insert(OPTIONS_KEY.to_owned(), options);
        }
        Ok(schema)
    }

    fn schema(&mut self, schema: &mut Value) -> Result<(), GrammarError> {
        let Value::Object(members) = schema else { return Ok(()) };
        members.retain(|keyword, _| KEPT.contains(&keyword.as_str()) || KEYWORDS.contains(&keyword.as_str()));
        // Nested schemas come first: afterwards the schema's own keywords contain primes.
        for (keyword, value) in members.iter_mut() {
            let word = keyword.as_str();
            match value {
                Value::Array(schemas) if SCHEMAS.contains(&word) => {
                    schemas.iter_mut().try_for_each(|schema| self.schema(schema))?;
                }
                Value::Object(schemas) if SCHEMA_MAP.contains(&word) => {
                    schemas.values_mut().try_for_each(|schema| self.schema(schema))?;
                }
                value if SCHEMA.contains(&word) => self.schema(value)?,
                _ => {}
            }
        }
        self.own(members)
    }

    /// Converts the keywords of one schema.
    fn own(&mut self, schema: &mut Map<String, Value>) -> Result<(), GrammarError> {
        let mut set = NumberSet::default();
        for keyword in KEYWORDS {
            if let Some(value) = schema.get(keyword) {
                // Invalid values were refused before.
                read(keyword, value, schema, &mut set).map_err(|_| too_complex())?;
            }
        }
        KEYWORDS.iter().for_each(|keyword| drop(schema.shift_remove(*keyword)));
        for keyword in ["const", "enum"] {
            let Some(value) = schema.get(keyword) else { continue };
            let constants = match (keyword, value) {
                ("const", value) => std::slice::from_ref(value),
                (_, Value::Array(values)) => values.as_slice(),
                _ => continue,
            };
            if !constants.iter().any(has_number) {
                continue;
            }
            if constants.iter().all(exact_number::is_number) {
                let texts: Vec<_> = constants.iter().filter_map(exact_number::text).collect();
                set.among(texts.iter().map(AsRef::as_ref)).map_err(|_| too_complex())?;
                schema.shift_remove(keyword);
                only_numbers(schema);
                continue;
            }
            let lowered = self.constants(constants)?;
            schema.shift_remove(keyword);
            rewrite::and(schema, lowered);
        }
        if set.is_everything() {
            return Ok(());
        }
        if set.is_empty() {
            rewrite::and(schema, json!({ "type": OTHER_TYPES }));
        } else {
            let prime = self.prime(set)?;
            schema.insert("multipleOf".to_owned(), Value::from(prime));
        }
        Ok(())
    }

    /// A schema of exactly these values.
    fn constants(&mut self, values: &[Value]) -> Result<Value, GrammarError> {
        let numbers: Vec<_> = values.iter().filter_map(exact_number::text).collect();
        let (trees, plain): (Vec<&Value>, Vec<&Value>) = values
            .iter()
            .filter(|value| !exact_number::is_number(value))
            .partition(|value| has_number(value));
        let mut options = Vec::new();
        if !plain.is_empty() {
            options.push(json!({ "enum": plain }));
        }
        if !numbers.is_empty() {
            let mut set = NumberSet::default();
            set.among(numbers.iter().map(AsRef::as_ref)).map_err(|_| too_complex())?;
            let prime = self.prime(set)?;
            options.push(json!({ "type": "number", "multipleOf": prime }));
        }
        for tree in trees {
            options.push(self.tree(tree)?);
        }
        Ok(if options.len() == 1 { options.remove(0) } else { json!({ "anyOf": options }) })
    }

    /// A schema of exactly one value.
    fn tree(&mut self, value: &Value) -> Result<Value, GrammarError> {
        if exact_number::is_number(value) {
            return self.constants(std::slice::from_ref(value));
        }
        if !has_number(value) {
            return Ok(json!({ "const": value }));
        }
        Ok(match value {
            Value::Array(elements) => {
                let items = elements.iter().map(|one| self.tree(one)).collect::<Result<Vec<_>, _>>()?;
                let n = items.len();
                // The form that all drafts accept.
                json!({"type": "array", "items": items, "additionalItems": false, "minItems": n, "maxItems": n})
            }
            Value::Object(members) => {
                let mut properties = Map::new();
                for (name, member) in members {
                    properties.insert(name.clone(), self.tree(member)?);
                }
                let names: Vec<&String> = members.keys().collect();
                json!({"type": "object", "required": names, "properties": properties,
                    "additionalProperties": false})
            }
            other => json!({ "const": other }),
        })
    }
}

/// Removes all types except numbers from those that a schema allows.
fn only_numbers(schema: &mut Map<String, Value>) {
    match schema.get("type") {
        None => drop(schema.insert("type".to_owned(), Value::from("number"))),
        Some(kind) if kind == "number" || kind == "integer" => {}
        Some(_) => rewrite::and(schema, json!({ "type": "number" })),
    }
}

fn too_complex() -> GrammarError {
    super::super::too_complex("a number in the schema".to_owned())
}

fn has_number(value: &Value) -> bool {
    exact_number::is_number(value)
        || match value {
            Value::Array(elements) => elements.iter().any(has_number),
            Value::Object(members) => members.values().any(has_number),
            _ => false,
        }
}
