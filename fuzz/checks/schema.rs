//! Any JSON as a schema: refused with a reason, or compiled into a grammar whose first tokens can be told. An
//! abort is what this is after: a stack that overflows cannot be caught.

use std::sync::{Arc, LazyLock};

use serde_json::{Map, Value, json};
use throng_text::grammar::{CompileLimits, ConstraintSpec, GrammarCompiler, GrammarError, GrammarMatcher};
use throng_text::{Tokenizer, exact_number};

/// A compiler for single bytes and an end token.
static COMPILER: LazyLock<GrammarCompiler> = LazyLock::new(|| {
    let bytes = (0x21..=0x7e_u8).map(|byte| (char::from(byte).to_string(), Value::from(byte - 0x21)));
    let json = json!({
        "version": "1.0",
        "added_tokens": [{"id": 94, "content": "</s>", "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": bytes.collect::<Map<String, Value>>(), "merges": []},
    });
    let tokenizer = Tokenizer::from_tokenizer_json(json.to_string().as_bytes(), None).expect("a tokenizer");
    GrammarCompiler::new(Arc::new(tokenizer), &[94], CompileLimits::default()).expect("it has an end token")
});

/// Panics when the compiler violates its contract.
pub fn check(bytes: &[u8]) {
    let Some(schema) = std::str::from_utf8(bytes).ok().and_then(|text| exact_number::parse(text).ok()) else {
        return;
    };
    match COMPILER.compile(&ConstraintSpec::JsonSchema(schema)) {
        Ok(grammar) => {
            let mut allowed = vec![0; grammar.n_tokens().div_ceil(32)];
            let mask = GrammarMatcher::new(grammar, 1).mask(&[], &mut allowed);
            assert!(mask.is_err() || allowed.iter().any(|word| *word != 0));
        }
        Err(GrammarError::Internal(reason)) => assert!(!reason.contains("numbers"), "{reason}"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
