//! Any bytes as a chat template, rendered with ordinary messages: refused, or a prompt within the limits.

use serde_json::json;
use throng_text::{ChatTemplate, SpecialTokens, TemplateInput};

/// Above every limit of the renderer.
const MAX_PROMPT_BYTES: usize = 256 << 20;

/// Panics when the renderer violates its contract.
pub fn check(bytes: &[u8]) {
    let Ok(source) = std::str::from_utf8(bytes) else { return };
    let Ok(template) = ChatTemplate::new(source) else { return };
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hello {{ 1 }} <|im_end|>"}]},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": [1, null, 2.5]}}}
        ]},
        {"role": "tool", "content": "4", "tool_call_id": "1"},
    ]);
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let special_tokens = SpecialTokens::default();
    let input = TemplateInput { now_unix_s: Some(0), ..TemplateInput::new(&messages, &special_tokens) };
    for tools in [None, Some(&tools)] {
        if let Ok(prompt) = template.render(&TemplateInput { tools, ..input.clone() }) {
            assert!(prompt.text().len() <= MAX_PROMPT_BYTES);
        }
    }
}
