//! Tools that must be called, and calls that must satisfy their schemas, over an executor whose choices are
//! arbitrary but for the mask.

use crate::harness::{Client, Server, Setup, VOCABULARY, byte_tokenizer_with, chat};
use serde_json::{Map, Value, json};
use throng_core::scheduling::executor::ExecutorCapacity;
use throng_testkit::nightly::amount;
use throng_text::{AnswerFormat, ReasoningFormat, ToolCallFormat};

/// All formats, with their markers as text and as control tokens.
const FORMATS: &[(ToolCallFormat, &[&str])] = &[
    (ToolCallFormat::Hermes, &[]),
    (ToolCallFormat::Hermes, &["<tool_call>", "</tool_call>"]),
    (ToolCallFormat::Generic, &[]),
    (ToolCallFormat::Llama3Json, &[]),
    (ToolCallFormat::Llama3Json, &["<|python_tag|>"]),
    (ToolCallFormat::Mistral, &["[TOOL_CALLS]"]),
    (ToolCallFormat::Mistral, &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"]),
    (ToolCallFormat::Granite, &["<|tool_call|>"]),
    (ToolCallFormat::Granite20bFc, &["<function_call>"]),
    (ToolCallFormat::Phi4Mini, &[]),
    (ToolCallFormat::Phi4Mini, &["<|tool_call|>", "<|/tool_call|>"]),
    (ToolCallFormat::Jamba, &[]),
    (
        ToolCallFormat::DeepSeek,
        &[
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁end｜>",
        ],
    ),
    (
        ToolCallFormat::KimiK2,
        &[
            "<|tool_calls_section_begin|>",
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
            "<|tool_calls_section_end|>",
        ],
    ),
    (ToolCallFormat::Qwen3Coder, &[]),
    (ToolCallFormat::Qwen3Coder, &["<tool_call>", "</tool_call>"]),
    (ToolCallFormat::SeedOss, &["<seed:tool_call>", "</seed:tool_call>"]),
    (ToolCallFormat::MinimaxM2, &["<minimax:tool_call>", "</minimax:tool_call>"]),
    (ToolCallFormat::Glm, &[]),
    (
        ToolCallFormat::Glm,
        &["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
    ),
    (ToolCallFormat::Pythonic, &[]),
    (ToolCallFormat::Pythonic, &["<|python_start|>", "<|python_end|>"]),
    (ToolCallFormat::Olmo3, &[]),
    (ToolCallFormat::Olmo3, &["<function_calls>", "</function_calls>"]),
    (ToolCallFormat::Harmony, &["<|channel|>", "<|constrain|>", "<|message|>"]),
];

async fn server(
    format: ToolCallFormat,
    reasoning: Option<ReasoningFormat>,
    markers: &'static [&'static str],
) -> Server {
    let answer_format = AnswerFormat::new(Some(format), reasoning, &byte_tokenizer_with(markers));
    let setup = Setup::default();
    let capacity = ExecutorCapacity { vocabulary_size: VOCABULARY + markers.len() as u32, ..setup.capacity };
    Server::start(Setup { answer_format, markers, capacity, ..setup }).await
}

fn tools(is_strict: bool) -> Value {
    json!([
        {"type": "function", "function": {"name": "get_weather", "strict": is_strict, "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 6},
                "unit": {"$ref": "#/$defs/unit"},
            },
            "required": ["city", "unit"],
            "additionalProperties": false,
            "$defs": {"unit": {"enum": ["c", "f"]}},
        }}},
        {"type": "function", "function": {"name": "add", "strict": is_strict, "parameters": {
            "type": "object",
            "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 50}},
            "required": ["n"],
            "additionalProperties": false,
        }}},
        {"type": "function", "function": {"name": "now", "strict": is_strict}},
        {"type": "function", "function": {"name": "store", "strict": is_strict, "parameters": {
            "type": "object",
            "properties": {
                "note": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}]},
                "key": {"type": "string", "pattern": "^[a-c]{2}<|/[0-9]$", "maxLength": 6},
                "on": {"type": "boolean"},
                "x": {"type": ["integer", "string"], "maxLength": 3, "minimum": -9, "maximum": 99},
                "list": {"type": "array", "items": {"enum": ["</parameter>", "</arg_value>", 1, null]},
                         "maxItems": 2},
                "any": {"type": "object", "maxProperties": 1, "properties": {"a": {"$ref": "#/$defs/word"}},
                        "required": ["a"], "additionalProperties": false},
            },
            "required": ["note", "any", "x"],
            "additionalProperties": false,
            "$defs": {"word": {"type": "string", "maxLength": 3}},
        }}},
    ])
}

/// Names and arguments of the calls of an answer, whole and put together from a stream, which must be the
/// same.
async fn calls(client: &mut Client, body: &Value, told: &str) -> (Vec<(String, String)>, Value) {
    let whole = client.post("/v1/chat/completions", body).await;
    assert_eq!(whole.status, 200, "{told}: {}", whole.text());
    let whole = whole.json()["choices"][0].clone();
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let of_call = |call: &Value| (text(&call["function"]["name"]), text(&call["function"]["arguments"]));
    let expected: Vec<_> =
        whole["message"]["tool_calls"].as_array().into_iter().flatten().map(of_call).collect();
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let chunks = client.post("/v1/chat/completions", &streamed).await.chunks();
    let deltas = || chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]);
    let mut found: Vec<(String, String)> = Vec::new();
    for call in deltas().filter_map(|delta| delta["tool_calls"].as_array()).flatten() {
        match call["function"]["name"].as_str() {
            Some(_) => found.push(of_call(call)),
            None => found.last_mut().expect("a call").1.push_str(&text(&call["function"]["arguments"])),
        }
    }
    assert_eq!(found, expected, "{told}");
    for key in ["content", "reasoning"] {
        let text: String = deltas().filter_map(|delta| delta[key].as_str()).collect();
        assert_eq!(text, whole["message"][key].as_str().unwrap_or_default(), "{told}: {key}");
    }
    (expected, whole)
}

/// Whether the arguments of `store` satisfy its schema.
fn is_stored(object: &Map<String, Value>) -> bool {
    let is_text = |value: &Value, n: usize| value.as_str().is_some_and(|text| text.chars().count() <= n);
    let is_key = |text: &str| {
        let bytes = text.as_bytes();
        let begins = bytes.len() > 2 && bytes[..2].iter().all(|byte| (b'a'..=b'c').contains(byte));
        begins && bytes[2] == b'<'
            || bytes.len() > 1 && bytes[bytes.len() - 2] == b'/' && bytes[bytes.len() - 1].is_ascii_digit()
    };
    let is_item = |value: &Value| {
        ["</parameter>", "</arg_value>"].iter().any(|text| value == text) || *value == 1 || value.is_null()
    };
    let holds = |(name, value): (&String, &Value)| match name.as_str() {
        "note" => value.is_null() || is_text(value, 4),
        "key" => value.as_str().is_some_and(is_key),
        "on" => value.is_boolean(),
        // -0.0 is an integer to JSON Schema.
        "x" => {
            let is_integer = |n: f64| n.fract() == 0.0 && (-9.0..=99.0).contains(&n);
            value.as_f64().is_some_and(is_integer) || is_text(value, 3)
        }
        "list" => value.as_array().is_some_and(|list| list.len() <= 2 && list.iter().all(is_item)),
        "any" => value.as_object().is_some_and(|any| any.len() == 1 && is_text(&any["a"], 3)),
        _ => false,
    };
    ["note", "any", "x"].iter().all(|name| object.contains_key(*name)) && object.iter().all(holds)
}

fn check(calls: &[(String, String)], told: &str) {
    for (name, arguments) in calls {
        let value: Value =
            serde_json::from_str(arguments).unwrap_or_else(|e| panic!("{told}: {e}: {arguments}"));
        let object = value.as_object().expect("an object");
        match name.as_str() {
            "get_weather" => {
                let city = object["city"].as_str().expect("a text");
                assert!(object.len() == 2 && city.chars().count() <= 6, "{told}: {value}");
                assert!(["c", "f"].contains(&object["unit"].as_str().expect("a text")), "{told}: {value}");
            }
            "add" => {
                let n = object["n"].as_u64().expect("a number");
                assert!(object.len() == 1 && n <= 50, "{told}: {value}");
            }
            "now" => assert!(object.is_empty(), "{told}: {value}"),
            "store" => assert!(is_stored(object), "{told}: {value}"),
            other => panic!("{told}: an unknown tool {other}"),
        }
    }
}

#[tokio::test]
async fn a_required_call_comes_in_every_format() {
    let mut n_parallel = 0;
    for (format, markers) in FORMATS {
        let server = server(*format, None, markers).await;
        let mut client = server.connect().await;
        for seed in 0..amount(6, 30) {
            let told = format!("{format:?}, {} markers, seed {seed}", markers.len());
            let mut fields = json!({"tools": tools(seed % 2 == 0), "tool_choice": "required", "max_tokens": 600,
                                    "seed": seed, "temperature": 1.0});
            match seed % 3 {
                0 => fields["parallel_tool_calls"] = json!(false),
                1 => fields["tool_choice"] = json!({"type": "function", "function": {"name": "add"}}),
                _ => {}
            }
            let (mut calls, choice) = calls(&mut client, &chat(fields), &told).await;
            // Nothing but its length ends an answer that may have any number of calls.
            let is_cut = seed % 3 == 2 && choice["finish_reason"] == "length" && calls.pop().is_some();
            assert!(is_cut || choice["finish_reason"] == "tool_calls", "{told}: {choice}");
            // Of a call that was cut before its name was whole, the text is given back.
            assert!(is_cut || choice["message"]["content"].is_null(), "{told}: {choice}");
            check(&calls, &told);
            match seed % 3 {
                0 => assert_eq!(calls.len(), 1, "{told}"),
                1 => assert!(calls.len() == 1 && calls[0].0 == "add", "{told}: {calls:?}"),
                _ => assert!(!calls.is_empty(), "{told}"),
            }
            n_parallel += usize::from(calls.len() > 1);
        }
        server.idle().await;
    }
    assert!(n_parallel > amount(1, 5), "only {n_parallel} answers have several calls");
}

#[tokio::test]
async fn calls_of_strict_tools_satisfy_their_schemas_wherever_they_come() {
    let mut n_calls = 0;
    for (format, markers) in FORMATS.iter().filter(|row| !row.1.is_empty()) {
        let markers: &[&str] = markers;
        if *format == ToolCallFormat::Harmony {
            // In this vocabulary the mark between messages ends the output.
            continue;
        }
        let server = server(*format, None, markers).await;
        let mut client = server.connect().await;
        for seed in 0..amount(10, 30) {
            let told = format!("{format:?}, {} markers, seed {seed}", markers.len());
            let fields = json!({"tools": tools(true), "max_tokens": 400, "seed": seed, "temperature": 1.0,
                                "parallel_tool_calls": seed % 2 == 0});
            let (mut calls, choice) = calls(&mut client, &chat(fields), &told).await;
            if choice["finish_reason"] == "length" {
                calls.pop();
            }
            check(&calls, &told);
            n_calls += calls.len();
        }
        server.idle().await;
    }
    assert!(n_calls > amount(6, 20), "only {n_calls} calls");
}

#[tokio::test]
async fn constraints_begin_after_the_reasoning() {
    const MARKERS: &[&str] = &["<think>", "</think>", "<tool_call>", "</tool_call>"];
    let server = server(ToolCallFormat::Hermes, Some(ReasoningFormat::Think), MARKERS).await;
    let mut client = server.connect().await;
    let mut n_reasoned = 0;
    for seed in 0..30 {
        let told = format!("seed {seed}");
        let common = json!({"max_tokens": 600, "seed": seed, "temperature": 1.0, "thinking_token_budget": 20,
                            "messages": [{"role": "user", "content": "Hello"},
                                         {"role": "assistant", "content": "<think>so"}],
                            "add_generation_prompt": false, "continue_final_message": true});
        let mut body = chat(common.clone());
        body["tools"] = tools(false);
        body["tool_choice"] = json!("required");
        let (mut calls, choice) = calls(&mut client, &body, &told).await;
        let is_cut = choice["finish_reason"] == "length" && calls.pop().is_some();
        assert!(is_cut || choice["finish_reason"] == "tool_calls", "{told}: {choice}");
        assert!(!calls.is_empty(), "{told}");
        check(&calls, &told);
        let mut body = chat(common);
        body["response_format"] = json!({"type": "json_schema", "json_schema": {"name": "n", "schema":
            {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"],
             "additionalProperties": false}}});
        let whole = client.post("/v1/chat/completions", &body).await.json();
        let message = &whole["choices"][0]["message"];
        let value: Value = serde_json::from_str(message["content"].as_str().expect("a text")).expect("JSON");
        assert!([1, 2].contains(&value["n"].as_u64().expect("a number")), "{told}: {value}");
        n_reasoned += usize::from(message["reasoning"].as_str().is_some_and(|text| !text.is_empty()));
        let n_tokens = whole["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64();
        assert!(n_tokens.is_some_and(|n| n <= 20), "{told}: {whole}");
    }
    assert!(n_reasoned > 10, "{n_reasoned}");
    server.idle().await;
}

#[tokio::test]
async fn a_thinking_budget_bounds_free_answers_and_is_refused_without_reasoning() {
    const MARKERS: &[&str] = &["<think>", "</think>"];
    let server = server(ToolCallFormat::Hermes, Some(ReasoningFormat::Think), MARKERS).await;
    let mut client = server.connect().await;
    let fields = |budget: i64| {
        json!({"max_tokens": 200, "seed": 3, "temperature": 1.0, "ignore_eos": true, "thinking_token_budget": budget,
               "messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "<think>so"}],
               "add_generation_prompt": false, "continue_final_message": true})
    };
    for budget in [0, 1, 30] {
        let answer = client.post("/v1/chat/completions", &chat(fields(budget))).await.json();
        assert_eq!(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], budget, "{answer}");
    }
    assert_eq!(client.post("/v1/chat/completions", &chat(fields(-1))).await.status, 200);
    for budget in [json!(-2), json!("x")] {
        let mut body = chat(fields(0));
        body["thinking_token_budget"] = budget;
        assert_eq!(client.post("/v1/chat/completions", &body).await.error().2, "thinking_token_budget");
    }
    drop(client);
    let server = self::server(ToolCallFormat::Hermes, None, &[]).await;
    let mut client = server.connect().await;
    let body = chat(json!({"thinking_token_budget": 5}));
    let (status, _, param, code) = client.post("/v1/chat/completions", &body).await.error();
    assert_eq!(
        (status, param, code.as_str()),
        (400, json!("thinking_token_budget"), "unsupported_parameter")
    );
}

#[tokio::test]
async fn tools_that_cannot_be_held_to_are_refused_before_anything_runs() {
    let server = server(ToolCallFormat::Hermes, None, &[]).await;
    let mut client = server.connect().await;
    let mut unsupported = tools(false);
    unsupported[1]["function"]["parameters"]["properties"]["n"]["not"] = json!({"const": 1});
    for (fields, param, code) in [
        (json!({"tools": unsupported, "tool_choice": "required"}), "tool_choice", "unsupported_json_schema"),
        (
            json!({"tools": tools(false), "tool_choice": "required", "guided_regex": "a"}),
            "guided_regex",
            "mutually_exclusive",
        ),
    ] {
        let reply = client.post("/v1/chat/completions", &chat(fields)).await;
        let (status, _, at, found) = reply.error();
        assert_eq!((status, found.as_str(), at), (400, code, json!(param)), "{}", reply.text());
    }
    let fields = json!({"tools": tools(false), "tool_choice": "required", "max_tokens": 2000,
                        "response_format": {"type": "json_object"}, "temperature": 1.0, "seed": 1});
    assert!(!calls(&mut client, &chat(fields), "with response_format").await.0.is_empty());
}
