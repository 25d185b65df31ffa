//! A tool as its server describes it, and the hash under which that is approved.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// Most bytes of a description.
const MAX_DESCRIPTION_BYTES: usize = 16 << 10;
/// Most bytes of a schema.
const MAX_SCHEMA_BYTES: usize = 64 << 10;
/// Most bytes of a name.
const MAX_NAME_BYTES: usize = 128;

/// A tool as its server describes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolDefinition {
    /// Name of the tool.
    pub name: String,
    /// Description of the tool for the model.
    #[serde(default)]
    pub description: Option<String>,
    /// The JSON schema of its arguments.
    pub input_schema: Value,
    /// Hints of the server about it.
    #[serde(default)]
    pub annotations: Option<Value>,
}

impl ToolDefinition {
    /// SHA-256 of all that a model or a person is told of it, in hexadecimal digits. The order of keys does
    /// not matter.
    pub fn digest(&self) -> String {
        let told = serde_json::json!([self.name, self.description, self.input_schema, self.annotations]);
        let text = sorted(told).to_string();
        Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether the server says that it changes nothing.
    pub fn is_read_only(&self) -> bool {
        self.annotations.as_ref().is_some_and(|hints| hints["readOnlyHint"] == Value::Bool(true))
    }

    /// Refuses what is too long to be told to a model.
    ///
    /// # Errors
    /// The fault.
    pub(crate) fn check(&self) -> Result<(), String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
        let name = &self.name;
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(is_plain) {
            return Err(format!("a tool has the name {:?}", name.chars().take(40).collect::<String>()));
        }
        if self.description.as_ref().is_some_and(|text| text.len() > MAX_DESCRIPTION_BYTES) {
            return Err(format!("the description of '{name}' has more than {MAX_DESCRIPTION_BYTES} bytes"));
        }
        if !self.input_schema.is_object() || self.input_schema.to_string().len() > MAX_SCHEMA_BYTES {
            return Err(format!("the schema of '{name}' is no object of at most {MAX_SCHEMA_BYTES} bytes"));
        }
        Ok(())
    }
}

/// A value whose objects have their keys in order.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.into_iter().collect();
            members.sort_by(|(a, _), (b, _)| a.cmp(b));
            Value::Object(members.into_iter().map(|(key, value)| (key, sorted(value))).collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        plain => plain,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(description: &str, schema: Value) -> ToolDefinition {
        let (name, description) = ("read".to_owned(), Some(description.to_owned()));
        ToolDefinition { name, description, input_schema: schema, annotations: None }
    }

    #[test]
    fn the_digest_covers_all_but_the_order_of_keys() {
        let first = tool("Reads.", json!({"type": "object", "properties": {"a": {"type": "string"}}}));
        let same = tool("Reads.", json!({"properties": {"a": {"type": "string"}}, "type": "object"}));
        assert_eq!(first.digest(), same.digest());
        for other in [
            tool("Reads!", first.input_schema.clone()),
            tool("Reads.", json!({"type": "object"})),
            ToolDefinition { annotations: Some(json!({"readOnlyHint": true})), ..first.clone() },
            ToolDefinition { name: "rea".to_owned(), ..first.clone() },
        ] {
            assert_ne!(first.digest(), other.digest(), "{other:?}");
        }
    }

    #[test]
    fn names_and_sizes_are_checked() {
        assert_eq!(tool("x", json!({})).check(), Ok(()));
        assert!(tool(&"x".repeat(MAX_DESCRIPTION_BYTES + 1), json!({})).check().is_err());
        assert!(tool("x", json!([])).check().is_err());
        let named = |name: &str| ToolDefinition { name: name.to_owned(), ..tool("x", json!({})) };
        assert!(named("a b").check().is_err());
        assert!(named("").check().is_err());
    }
}
