//! Requests of all kinds that must survive their worker, and what a client reads of their answers. Does not
//! know workers.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A request.
pub struct Case {
    pub name: &'static str,
    path: &'static str,
    body: Value,
}

/// Events that a client reads by choice, without times and random ids: how the events of several choices
/// alternate is not determined.
pub type Shown = BTreeMap<u64, Vec<String>>;

/// An answer, and the longest time between two of its events.
pub struct Answer {
    pub shown: Shown,
    pub longest_pause: Duration,
    /// How often it was said that the stream waits.
    pub n_waits: usize,
}

/// One of each kind.
pub fn cases() -> Vec<Case> {
    let schema = json!({"type": "object", "additionalProperties": false, "required": ["name", "tags", "size"],
        "properties": {"name": {"type": "string", "minLength": 8, "maxLength": 20}, "size": {"type": "integer"},
                       "tags": {"type": "array", "items": {"enum": ["sea", "star"]}, "minItems": 2, "maxItems": 4}}});
    let parameters = json!({"type": "object", "additionalProperties": false, "required": ["city"],
                            "properties": {"city": {"type": "string", "minLength": 10, "maxLength": 24}}});
    let tool = json!({"type": "function",
                      "function": {"name": "weather", "parameters": parameters, "strict": true}});
    let thinking = json!([{"role": "user", "content": "What is the sea?"},
                          {"role": "assistant", "content": "<think>They ask about the"}]);
    vec![
        chat("greedy", json!({"temperature": 0, "stream_options": {"include_usage": true}})),
        chat("log-probabilities", json!({"temperature": 0, "logprobs": true, "top_logprobs": 4})),
        chat("seeded", json!({"seed": 7, "temperature": 1.2, "top_p": 0.95, "top_k": 40})),
        chat(
            "penalties",
            json!({"seed": 8, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.25,
                   "bad_words": ["the"], "min_tokens": 20}),
        ),
        chat("n = 3", json!({"seed": 3, "n": 3, "return_token_ids": true})),
        completion("prompt log-probabilities", json!({"temperature": 0, "logprobs": 3, "echo": true})),
        // Several tokens long, and late in the text that the model continues this prompt with.
        completion("stop string", json!({"temperature": 0, "stop": ["he was so excited", "to play with"]})),
        chat(
            "JSON schema",
            json!({"seed": 11, "ignore_eos": false, "max_tokens": 120, "response_format":
                   {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema, "strict": true}}}),
        ),
        chat(
            "tools",
            json!({"seed": 5, "ignore_eos": false, "max_tokens": 120, "tools": [tool], "tool_choice": "required",
                   "parallel_tool_calls": false}),
        ),
        chat(
            "reasoning",
            json!({"temperature": 0, "messages": thinking, "add_generation_prompt": false,
                   "continue_final_message": true, "thinking_token_budget": 12}),
        ),
    ]
}

fn chat(name: &'static str, fields: Value) -> Case {
    let messages = json!([{"role": "user", "content": "Tell me about the sea and the stars."}]);
    case(name, "/v1/chat/completions", json!({"messages": messages}), fields)
}

fn completion(name: &'static str, fields: Value) -> Case {
    case(name, "/v1/completions", json!({"prompt": "The sea is"}), fields)
}

fn case(name: &'static str, path: &'static str, mut body: Value, fields: Value) -> Case {
    let always = json!({"model": "throng-starter", "request_id": "the-same", "max_tokens": 96, "stream": true,
                        "ignore_eos": true});
    let object = body.as_object_mut().expect("an object");
    for fields in [always, fields] {
        object.extend(fields.as_object().expect("an object").clone());
    }
    Case { name, path, body }
}

impl Case {
    /// Reads the stream to its end; `note` is called at each event.
    pub fn ask(&self, url: &str, note: &dyn Fn()) -> Answer {
        self.ask_of(url, None, note)
    }

    /// Like [`Self::ask`], of the worker of this name.
    pub fn ask_of(&self, url: &str, worker: Option<&str>, note: &dyn Fn()) -> Answer {
        let mut request =
            ureq::post(format!("{url}{}", self.path)).header("content-type", "application/json");
        if let Some(worker) = worker {
            request = request.header("x-throng-replica", worker);
        }
        let reply =
            request.send(self.body.to_string()).unwrap_or_else(|error| panic!("{}: {error}", self.name));
        let (mut shown, mut longest_pause, mut last) = (Shown::new(), Duration::ZERO, Instant::now());
        let (mut is_done, mut n_waits) = (false, 0);
        for line in BufReader::new(reply.into_body().into_reader()).lines() {
            let line = line.unwrap_or_else(|error| panic!("{}: {error} after {shown:?}", self.name));
            if line.is_empty() || line.starts_with(':') {
                n_waits += usize::from(line.starts_with(": waiting"));
                continue;
            }
            longest_pause = longest_pause.max(last.elapsed());
            last = Instant::now();
            note();
            let text = line.strip_prefix("data: ").unwrap_or_else(|| panic!("{}: {line}", self.name));
            is_done |= text == "[DONE]";
            let event: Value = serde_json::from_str(text).unwrap_or_default();
            assert_eq!(event["error"], Value::Null, "{}: {line} after {shown:?}", self.name);
            let index = event["choices"][0]["index"].as_u64().unwrap_or(0);
            shown.entry(index).or_default().push(without_time(text));
        }
        assert!(is_done, "{}: the stream ended early: {shown:?}", self.name);
        Answer { shown, longest_pause, n_waits }
    }
}

/// Without the time, the ids of calls, which are random, and what was found in a worker's cache.
fn without_time(line: &str) -> String {
    let without = |line: &str, before: &str| match line.split_once(before) {
        Some((start, rest)) => {
            format!("{start}{before}0{}", rest.trim_start_matches(|c: char| c.is_ascii_hexdigit()))
        }
        None => line.to_owned(),
    };
    let line = without(line, "\"created\":");
    without(&without(&line, "\"call_"), "\"cached_tokens\":")
}
