//! The constraint of a request's outputs in source form, since a compiled grammar is not sent. Does not
//! compile.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Constraint on outputs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Constraint {
    /// Form of the answer; `None` if only the reasoning is bounded.
    pub form: Option<Form>,
    /// Reasoning before the answer; `None` if the whole output is the answer.
    pub reasoning: Option<Reasoning>,
}

/// Form of an answer. An unknown kind is an error, since a constraint must not be ignored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "of", rename_all = "snake_case")]
pub enum Form {
    /// A JSON object of any form.
    JsonObject,
    /// JSON that satisfies this schema.
    JsonSchema(Value),
    /// A regular expression.
    Regex(String),
    /// A choice of these texts.
    Choice(Vec<String>),
    /// A grammar in llguidance's Lark.
    Lark(String),
    /// A grammar in llama.cpp's GBNF.
    Gbnf(String),
    /// Free text with constrained parts, as vLLM takes it.
    StructuralTag(Value),
    /// A grammar for calls of tools.
    ToolCalls(ToolCalls),
}

/// Calls of tools that an answer may or must have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCalls {
    /// Name of the format.
    pub format: String,
    /// Names of the tools with the schemas of their arguments.
    pub tools: Vec<(String, Value)>,
    /// Whether the answer must consist of calls only.
    #[serde(default)]
    pub must_call: bool,
    /// Whether the answer may have at most one call.
    #[serde(default)]
    pub only_one: bool,
}

/// Reasoning before an answer, with the tokens around it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reasoning {
    /// Tokens that open the reasoning.
    pub open: Vec<u32>,
    /// Tokens that close the reasoning.
    pub close: Vec<u32>,
    /// Tokens between the reasoning and the answer.
    pub lead: Vec<u32>,
    /// Tokens before an answer without reasoning.
    pub direct: Vec<u32>,
    /// Whether the prompt ends inside the reasoning.
    pub is_open: bool,
    /// Maximum number of tokens of the reasoning.
    pub budget: Option<u32>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn forms_cross_with_the_order_of_their_keys_and_unknown_ones_are_refused() {
        let schema = json!({"z": 1, "a": {"y": [0.1, 1e30], "b": null}});
        let calls = ToolCalls {
            format: "hermes".into(),
            tools: vec![("f".into(), schema.clone())],
            must_call: true,
            only_one: false,
        };
        for form in [
            Form::JsonObject,
            Form::JsonSchema(schema.clone()),
            Form::Regex("a\n".into()),
            Form::Choice(vec!["a".into(), String::new()]),
            Form::Lark("start: x".into()),
            Form::Gbnf("root ::= x".into()),
            Form::StructuralTag(schema.clone()),
            Form::ToolCalls(calls),
        ] {
            let reasoning = Some(Reasoning { close: vec![1], budget: Some(0), ..Reasoning::default() });
            let constraint = Constraint { form: Some(form), reasoning };
            let text = serde_json::to_string(&constraint).expect("plain data");
            let back: Constraint = serde_json::from_str(&text).expect("what was written");
            assert_eq!(back, constraint);
            assert_eq!(serde_json::to_string(&back).expect("plain data"), text);
        }
        assert!(serde_json::from_str::<Constraint>(r#"{"form": {"kind": "haiku", "of": 3}}"#).is_err());
    }
}
