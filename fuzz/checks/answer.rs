//! Any text as an answer, in the formats that the first two bytes choose: however it is cut, its parts are
//! the same, and what is no call is given back to the letter.

use std::sync::{Arc, OnceLock};

use serde_json::json;
use throng_text::{
    AnswerEvent, AnswerFormat, AnswerParser, ParseOptions, ReasoningFormat, Tokenizer, ToolCallFormat,
    ToolSchemas,
};

static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();

/// Panics when a promise of the parsers is broken.
pub fn check(bytes: &[u8]) {
    let [tool_calls, reasoning, flags, answer @ ..] = bytes else { return };
    let Ok(answer) = std::str::from_utf8(answer) else { return };
    let tokenizer = TOKENIZER.get_or_init(|| {
        let json = include_bytes!("../corpus/tokenizer/byte-level.json");
        Tokenizer::from_tokenizer_json(json, None).expect("a seed of another target")
    });
    let tool_calls = pick(ToolCallFormat::NAMES, *tool_calls);
    let reasoning = pick(ReasoningFormat::NAMES, *reasoning);
    let format = AnswerFormat::new(tool_calls, reasoning, tokenizer);
    let parameters = json!({"properties": {"n": {"type": "integer"}, "text": {"type": "string"}, "any": {"type": "array"}}});
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
    let options = ParseOptions {
        tools: Some(Arc::new(ToolSchemas::new(&[tool]))),
        in_reasoning: flags & 1 != 0,
        ..ParseOptions::default()
    };
    let mut parser = AnswerParser::new(&format, options.clone());
    let mut whole = parser.push_text(answer);
    whole.extend(parser.finish());
    let mut parser = AnswerParser::new(&format, options);
    let mut cut = Vec::new();
    for (at, c) in answer.char_indices() {
        cut.extend(parser.push_text(&answer[at..at + c.len_utf8()]));
    }
    cut.extend(parser.finish());
    assert_eq!(joined(&cut), joined(&whole));
    let is_harmony = tool_calls == Some(ToolCallFormat::Harmony);
    let has_calls = whole.iter().any(|event| matches!(event, AnswerEvent::ToolCallBegin { .. }));
    if reasoning.is_none() && !is_harmony && !has_calls {
        assert_eq!(joined(&whole), [("content", answer.to_owned())][..usize::from(!answer.is_empty())]);
    }
}

/// One of the formats, or none.
fn pick<T: Copy>(names: &[(&str, T)], byte: u8) -> Option<T> {
    names.get(usize::from(byte) % (names.len() + 1)).map(|known| known.1)
}

/// The events, those of one kind that follow each other put together.
fn joined(events: &[AnswerEvent]) -> Vec<(&'static str, String)> {
    let mut joined: Vec<(&'static str, String)> = Vec::new();
    for event in events {
        let (kind, text) = match event {
            AnswerEvent::Content(text) => ("content", text.clone()),
            AnswerEvent::Reasoning(text) => ("reasoning", text.clone()),
            AnswerEvent::ToolCallBegin { index, name, .. } => ("begin", format!("{index} {name}")),
            AnswerEvent::ToolCallArguments { fragment, .. } => ("arguments", fragment.clone()),
            AnswerEvent::ToolCallEnd { index } => ("end", index.to_string()),
        };
        match joined.last_mut() {
            Some(last) if last.0 == kind => last.1.push_str(&text),
            _ => joined.push((kind, text)),
        }
    }
    joined
}
