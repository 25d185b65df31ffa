//! Small tokenizers for tests, with the control tokens of many models.

use std::path::Path;

use serde_json::{Value, json};
use throng_text::Tokenizer;

/// Control tokens of the models whose templates are in the fixtures.
pub const CONTROL: &[&str] = &[
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|user|>",
    "<|system|>",
    "<|assistant|>",
    "<|end|>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_CALLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "<|start|>",
    "<|message|>",
    "<|channel|>",
    "<|call|>",
    "<|return|>",
];

/// Added tokens that users may write.
pub const PLAIN_ADDED: &[&str] = &["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"];

/// The tokenizer `name` of the fixtures with all of these added.
pub fn tokenizer(name: &str) -> Tokenizer {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/tokenizers/{name}.json"));
    let mut file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let added = file["added_tokens"].as_array_mut().unwrap();
    let first_id = added.iter().map(|token| token["id"].as_u64().unwrap()).max().unwrap() + 1;
    for (idx, text) in CONTROL.iter().chain(PLAIN_ADDED).enumerate() {
        added.push(json!({
            "id": first_id + idx as u64, "content": text, "special": idx < CONTROL.len(),
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        }));
    }
    let config = json!({"bos_token": "<s>", "eos_token": "</s>"});
    let (file, config) = (file.to_string(), config.to_string());
    Tokenizer::from_tokenizer_json(file.as_bytes(), Some(config.as_bytes())).unwrap()
}
