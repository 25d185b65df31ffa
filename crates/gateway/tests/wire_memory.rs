//! Parsing a worst-case body of megabytes allocates at most four times its size, and so do the prompts that
//! chat templates make of it.

use std::alloc::System;
use std::time::Instant;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use throng_api::openai::{DetokenizeRequest, chat, completion};
use throng_api::{ApiError, ReadOptions};
use throng_text::{ChatTemplate, SpecialTokens, TemplateInput};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The size of most bodies: the cost of a byte does not depend on it.
const BODY_BYTES: usize = 2 << 20;

/// The limit of text routes.
const MAX_BODY_BYTES: usize = 8 << 20;

fn repeated(item: &str, max: usize) -> String {
    let n = max.min(BODY_BYTES / (item.len() + 1));
    vec![item; n].join(",")
}

/// Parses a body and returns the outcome.
fn read(
    name: &str,
    body: String,
    reader: impl Fn(&[u8]) -> Result<(), ApiError>,
) -> Result<(), &'static str> {
    read_within(4, name, body, reader)
}

/// The same with another bound on the bytes allocated for each byte of the body, including those that were
/// freed.
fn read_within(
    factor: usize,
    name: &str,
    body: String,
    reader: impl Fn(&[u8]) -> Result<(), ApiError>,
) -> Result<(), &'static str> {
    assert!(body.len() > BODY_BYTES / 2, "{name}: {} bytes", body.len());
    let (region, began) = (Region::new(ALLOCATOR), Instant::now());
    let answer = reader(body.as_bytes());
    let (allocated, took) = (region.change().bytes_allocated, began.elapsed());
    let n_mb = body.len() as f64 / 1e6;
    println!(
        "{name}: {:.2} bytes of heap a byte of body, {:.1} ms a MB",
        allocated as f64 / body.len() as f64,
        took.as_secs_f64() * 1e3 / n_mb
    );
    // Release builds take 20 ms for each MB: this bound only detects work that grows faster than the body.
    assert!(took.as_secs_f64() < 2.0 * n_mb.max(1.0), "{name}: {took:?} for {n_mb:.1} MB");
    assert!(allocated <= factor * body.len(), "{name}: {allocated} bytes for {}", body.len());
    answer.map_err(|error| error.code())
}

fn chat(body: &[u8]) -> Result<(), ApiError> {
    chat::parse(body, &ReadOptions::default()).map(drop)
}

fn completion(body: &[u8]) -> Result<(), ApiError> {
    completion::parse(body, &ReadOptions::default()).map(drop)
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

/// A single test in this binary, so that no other one allocates meanwhile.
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
    assert_eq!(read("depth", "[".repeat(BODY_BYTES), chat), Err("json_too_deep"));
    fields_that_nest();
    prompts();
}

/// Every other field with lists, texts or JSON, in its worst case.
fn fields_that_nest() {
    let calls = |arguments: &str, n: usize| {
        let call = format!(r#"{{"id":"@","function":{{"name":"f","arguments":"{arguments}"}}}}"#);
        let message = |idx: usize| {
            let calls: Vec<_> = (0..n).map(|id| call.replace('@', &id.to_string())).collect();
            let replies: Vec<_> = (0..n)
                .map(|id| format!(r#"{{"role":"tool","tool_call_id":"{id}","content":"{idx}"}}"#))
                .collect();
            format!(r#"{{"role":"assistant","tool_calls":[{}]}},{}"#, calls.join(","), replies.join(","))
        };
        let len = message(0).len();
        let messages: Vec<_> = (0..BODY_BYTES / len + 1).map(message).collect();
        format!(r#"{{"model":"m","messages":[{}]}}"#, messages.join(","))
    };
    assert_eq!(read("calls", calls("", 128), chat), Err("schema_too_complex"));
    let wide = format!(r#"{{\"a\":[{}]}}"#, repeated("0", 20_000));
    assert_eq!(read("arguments of objects", calls(&wide, 1), chat), Err("schema_too_complex"));
    let array = format!("[{}]", repeated("0", usize::MAX));
    assert_eq!(read("arguments of an array", calls(&array, 1), chat), Err("schema_too_complex"));
    let ids = repeated("1", usize::MAX);
    assert_eq!(read("allowed tokens", with(&format!(r#""allowed_token_ids":[{ids}]"#)), chat), Ok(()));
    let words = repeated("\"a\"", usize::MAX);
    for name in ["stop", "bad_words"] {
        let code = Err("array_above_max_length");
        assert_eq!(read(name, with(&format!(r#""{name}":[{words}]"#)), chat), code);
    }
    let map: Vec<_> = (0..BODY_BYTES / 13).map(|i| format!(r#""k{i:07}":"""#)).collect();
    let map = map.join(",");
    let metadata = with(&format!(r#""metadata":{{{map}}}"#));
    assert_eq!(read("metadata", metadata, chat), Err("object_above_max_properties"));
    for (name, value) in [
        ("documents", format!("[{}]", repeated("{}", usize::MAX))),
        ("guided_json", format!("{{{map}}}")),
        ("structured_outputs", format!(r#"{{"json":{{{map}}}}}"#)),
    ] {
        let body = with(&format!(r#""{name}":{value}"#));
        assert_eq!(read(name, body, chat), Err("schema_too_complex"));
    }
    let format = format!(r#"{{"type":"json_schema","json_schema":{{"name":"x","schema":{{{map}}}}}}}"#);
    let format = with(&format!(r#""response_format":{format}"#));
    assert_eq!(read("response format", format, chat), Err("schema_too_complex"));
    let parts = repeated(r#"{"type":"text","text":""}"#, usize::MAX);
    let parts = with_content(&format!("[{parts}]"));
    assert_eq!(read("many parts", parts, chat), Err("array_above_max_length"));
}

/// A parsed body is rendered to a prompt. Including parsing and one temporary text, five bytes are allocated
/// for each byte, of which at most about three are held at a time.
fn prompts() {
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\
                    {% for call in m.tool_calls %}{{ call.function.arguments }}{% endfor %}<|im_end|>{% endfor %}";
    let template = ChatTemplate::new(template).expect("a valid template");
    let special = SpecialTokens { control: vec!["<|im_start|>".to_owned()], ..SpecialTokens::default() };
    let render = |body: &[u8]| {
        let mut request = chat::parse(body, &ReadOptions::default())?;
        let messages = request.conversation_mut().unwrap().take_messages_for_template(true);
        let prompt = template.render(&TemplateInput::new(&messages, &special));
        prompt.map(drop).map_err(|error| ApiError::template_error(&error.to_string()))
    };
    let long = "x".repeat(MAX_BODY_BYTES);
    let read = |name: &str, body: String| read_within(5, name, body, render);
    assert_eq!(read("prompt of one text", with_content(&format!("\"{long}\""))), Ok(()));
    let starts = "<".repeat(MAX_BODY_BYTES / 4);
    // Each of these characters has a stand-in of four bytes, in the value and in the prompt.
    let body = with_content(&format!("\"{starts}\""));
    assert_eq!(read_within(20, "prompt of stand-ins", body, render), Ok(()));
    let message = format!(r#"{{"role":"user","content":"{}"}}"#, "y".repeat(2000));
    let messages = repeated(&message, 10_000);
    let body = format!(r#"{{"model":"m","messages":[{messages}]}}"#);
    // Each message has some small values of its own besides its text.
    assert_eq!(read_within(6, "prompt of messages", body, render), Ok(()));
    let array = format!("[{}]", repeated("0", usize::MAX));
    let call = format!(
        r#"{{"role":"assistant","tool_calls":[{{"id":"a","function":{{"name":"f","arguments":"{array}"}}}}]}}"#
    );
    let reply = r#"{"role":"tool","tool_call_id":"a","content":"1"}"#;
    let body = format!(r#"{{"model":"m","messages":[{call},{reply}]}}"#);
    assert_eq!(read("prompt of an array in arguments", body.clone()), Err("schema_too_complex"));
    let object = format!(r#"{{\"a\":\"{}\"}}"#, "z".repeat(MAX_BODY_BYTES));
    // A JSON value is printed into a separate text before it becomes part of the prompt.
    let body = body.replace(&array, &object);
    assert_eq!(read_within(12, "prompt of an object in arguments", body, render), Ok(()));
}
