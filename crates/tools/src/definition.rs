//! The hash under which the description of a tool is approved, and the bounds of descriptions.

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use throng_api::responses::ToolDefinition;

/// Maximum bytes of a description.
const MAX_DESCRIPTION_BYTES: usize = 16 << 10;
/// Maximum bytes of a schema.
const MAX_SCHEMA_BYTES: usize = 64 << 10;
/// Maximum bytes of a name.
const MAX_NAME_BYTES: usize = 128;

/// SHA-256 of the complete description of a tool by its server, in hexadecimal digits. The order of keys does
/// not matter.
pub(crate) fn digest(tool: &ToolDefinition) -> String {
    let told = serde_json::json!([tool.name, tool.description, tool.input_schema, tool.annotations]);
    let text = sorted(told).to_string();
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Refuses a tool whose description is too long for a model, or whose name is invalid.
///
/// # Errors
/// The first invalid value.
pub(crate) fn check(tool: &ToolDefinition) -> Result<(), String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let name = &tool.name;
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(is_plain) {
        return Err(format!("a tool has the name {:?}", name.chars().take(40).collect::<String>()));
    }
    if tool.description.as_ref().is_some_and(|text| text.len() > MAX_DESCRIPTION_BYTES) {
        return Err(format!("the description of '{name}' has more than {MAX_DESCRIPTION_BYTES} bytes"));
    }
    if !tool.input_schema.is_object() || tool.input_schema.to_string().len() > MAX_SCHEMA_BYTES {
        return Err(format!("the schema of '{name}' is no object of at most {MAX_SCHEMA_BYTES} bytes"));
    }
    Ok(())
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
        assert_eq!(digest(&first), digest(&same));
        for other in [
            tool("Reads!", first.input_schema.clone()),
            tool("Reads.", json!({"type": "object"})),
            ToolDefinition { annotations: Some(json!({"readOnlyHint": true})), ..first.clone() },
            ToolDefinition { name: "rea".to_owned(), ..first.clone() },
        ] {
            assert_ne!(digest(&first), digest(&other), "{other:?}");
        }
    }

    #[test]
    fn names_and_sizes_are_checked() {
        assert_eq!(check(&tool("x", json!({}))), Ok(()));
        assert!(check(&tool(&"x".repeat(MAX_DESCRIPTION_BYTES + 1), json!({}))).is_err());
        assert!(check(&tool("x", json!([]))).is_err());
        let named = |name: &str| ToolDefinition { name: name.to_owned(), ..tool("x", json!({})) };
        assert!(check(&named("a b")).is_err());
        assert!(check(&named("")).is_err());
    }
}
