//! A client's constraint on outputs, before it is compiled. Does not know how it is enforced.

use serde_json::Value;
use xxhash_rust::xxh3::Xxh3;

use super::tool_calls::ToolCallSpec;

/// A constraint on outputs.
#[derive(Debug, Clone, PartialEq)]
pub enum ConstraintSpec {
    /// A JSON object of any form.
    JsonObject,
    /// A JSON value that satisfies a JSON Schema.
    JsonSchema(Value),
    /// Text that matches a regular expression as a whole (in the syntax of the Rust crate `regex`; `^` and
    /// `$` around the whole are allowed).
    Regex(String),
    /// A choice of these texts.
    Choice(Vec<String>),
    /// A grammar in llguidance's variant of Lark, with the start rule `start`.
    Lark(String),
    /// A grammar in llama.cpp's GBNF, with the start rule `root`.
    Gbnf(String),
    /// Free text with constrained tagged parts: vLLM's `{"type":"structural_tag", …}`.
    StructuralTag(Value),
    /// Tool calls in the model's own format.
    ToolCalls(ToolCallSpec),
}

/// Key of a [`ConstraintSpec`]: equal for equal content. 128 bits, so that accidental collisions in a cache
/// are impossible in practice; the cache also compares the content itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GrammarKey(u128);

impl ConstraintSpec {
    /// Determines the kind of a grammar from its text, as vLLM does for its parameter `grammar`: GBNF if a
    /// line defines a rule with `::=`, otherwise Lark.
    pub fn from_grammar_text(text: String) -> Self {
        if text.contains("::=") { Self::Gbnf(text) } else { Self::Lark(text) }
    }

    /// The key of the content.
    pub fn key(&self) -> GrammarKey {
        let mut hash = Xxh3::new();
        self.write_content(|bytes| hash.update(bytes));
        GrammarKey(hash.digest128())
    }

    /// Passes the kind and the content to `write`; equal bytes mean equal specifications.
    pub fn write_content(&self, mut write: impl FnMut(&[u8])) {
        let (kind, text) = self.content();
        write(&[kind]);
        write(text.as_bytes());
    }

    /// Bytes of the content as text.
    pub fn n_bytes(&self) -> usize {
        self.content().1.len()
    }

    /// The kind as a number, and the content as one text.
    fn content(&self) -> (u8, String) {
        match self {
            Self::JsonObject => (0, String::new()),
            Self::JsonSchema(schema) => (1, schema.to_string()),
            Self::Regex(regex) => (2, regex.clone()),
            Self::Choice(choices) => (3, Value::from(choices.clone()).to_string()),
            Self::Lark(grammar) => (4, grammar.clone()),
            Self::Gbnf(grammar) => (5, grammar.clone()),
            Self::StructuralTag(tag) => (6, tag.to_string()),
            Self::ToolCalls(calls) => (7, format!("{calls:?}")),
        }
    }
}
