//! Bodies of megabytes, each as awkward as it can be, cost the reader at most four times their size.

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use throng_gateway::openai::{ApiError, ChatRequest, CompletionRequest, DetokenizeRequest, ReadOptions};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// A body of most cases: what a byte costs does not depend on it.
const BODY_BYTES: usize = 2 << 20;

/// The limit of text routes.
const MAX_BODY_BYTES: usize = 8 << 20;

fn repeated(item: &str, max: usize) -> String {
    let n = max.min(BODY_BYTES / (item.len() + 1));
    vec![item; n].join(",")
}

/// Reads a body and says how it went.
fn read(
    name: &str,
    body: String,
    reader: impl Fn(&[u8]) -> Result<(), ApiError>,
) -> Result<(), &'static str> {
    assert!(body.len() > BODY_BYTES / 2, "{name}: {} bytes", body.len());
    let region = Region::new(ALLOCATOR);
    let answer = reader(body.as_bytes());
    let allocated = region.change().bytes_allocated;
    println!("{name}: {:.2} bytes of heap a byte of body", allocated as f64 / body.len() as f64);
    assert!(allocated <= 4 * body.len(), "{name}: {allocated} bytes for {}", body.len());
    answer.map_err(|error| error.code())
}

fn chat(body: &[u8]) -> Result<(), ApiError> {
    ChatRequest::parse(body, &ReadOptions::default()).map(drop)
}

fn completion(body: &[u8]) -> Result<(), ApiError> {
    CompletionRequest::parse(body, &ReadOptions::default()).map(drop)
}

fn detokenize(body: &[u8]) -> Result<(), ApiError> {
    DetokenizeRequest::parse(body, &ReadOptions::default()).map(drop)
}

fn with_content(content: &str) -> String {
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":{content}}}]}}"#)
}

fn with(more: &str) -> String {
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"a"}}],{more}}}"#)
}

/// One test, so that no other allocates meanwhile.
#[test]
fn large_bodies_cost_bounded_memory() {
    let long = "x".repeat(MAX_BODY_BYTES);
    assert_eq!(read("text", with_content(&format!("\"{long}\"")), chat), Ok(()));
    let escapes = "\\n".repeat(BODY_BYTES / 2);
    assert_eq!(read("escaped text", with_content(&format!("\"{escapes}\"")), chat), Ok(()));
    let message = format!(r#"{{"role":"user","content":"{}"}}"#, "y".repeat(180));
    let messages = repeated(&message, 10_000);
    assert_eq!(read("messages", format!(r#"{{"model":"m","messages":[{messages}]}}"#), chat), Ok(()));
    let part = format!(r#"{{"type":"text","text":"{}"}}"#, "z".repeat(180));
    assert_eq!(read("parts", with_content(&format!("[{}]", repeated(&part, 10_000))), chat), Ok(()));
    assert_eq!(read("unknown key", with(&format!(r#""u":[{}]"#, repeated("{}", usize::MAX))), chat), Ok(()));
    assert_eq!(read("long key", with(&format!(r#""{long}":1"#)), chat), Ok(()));
    let keys: Vec<_> = (0..BODY_BYTES / 13).map(|i| format!(r#""k{i:07}":1"#)).collect();
    let keys = keys.join(",");
    assert_eq!(read("many keys", with(&keys), chat), Err("object_above_max_properties"));
    let biases = keys.replace('k', "0");
    assert_eq!(read("logit bias", with(&format!(r#""logit_bias":{{{biases}}}"#)), chat), Err("too_many"));
    let kwargs = format!(r#""chat_template_kwargs":{{"a":[{}]}}"#, repeated("0", usize::MAX));
    assert_eq!(read("template variables", with(&kwargs), chat), Err("schema_too_complex"));
    let tool = r#"{"type":"function","function":{"name":"f","parameters":{"a":[#]}}}"#;
    let tools = format!(r#""tools":[{}]"#, tool.replace('#', &repeated("[]", usize::MAX)));
    assert_eq!(read("tools", with(&tools), chat), Err("schema_too_complex"));
    let prompt = |prompt: &str| format!(r#"{{"model":"m","prompt":[{prompt}]}}"#);
    assert_eq!(read("token ids", prompt(&repeated("1", usize::MAX)), completion), Ok(()));
    let text = format!("\"{}\"", "t".repeat(2000));
    assert_eq!(read("prompts", prompt(&repeated(&text, 1024)), completion), Ok(()));
    let lists = repeated("[1]", usize::MAX);
    assert_eq!(read("lists of one", prompt(&lists), completion), Err("array_above_max_length"));
    let tokens = format!(r#"{{"tokens":[{}]}}"#, repeated("1", usize::MAX));
    assert_eq!(read("detokenize", tokens, detokenize), Ok(()));
    assert_eq!(read("depth", "[".repeat(BODY_BYTES), chat), Err("invalid_json"));
}
