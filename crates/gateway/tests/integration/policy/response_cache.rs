//! Kept answers and shared generations over real sockets: equal requests are generated once and read the same
//! bytes, and whatever can change an answer is another request.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::faulty_engine::{Fault, FaultKind};
use crate::harness::{Client, Reply, Server, Setup, chat, completion, post_bytes};
use serde_json::{Value, json};
use throng_gateway::Secret;

fn caching() -> Setup {
    let mut setup = Setup::default();
    setup.config.response_cache.max_memory_bytes = 16 << 20;
    setup
}

async fn post(server: &Server, path: &str, body: &Value) -> Reply {
    server.connect().await.post(path, body).await
}

/// What a client reads, without the answer's id and time.
fn shown(reply: &Reply) -> Vec<String> {
    assert_eq!(reply.status, 200, "{}", reply.text());
    let frames = reply.text().split("\n\n").filter(|frame| *frame != ": ping");
    frames.map(|frame| without(&without(frame, "\"id\":\"", '"'), "\"created\":", ',')).collect()
}

fn without(text: &str, before: &str, end: char) -> String {
    let Some((head, rest)) = text.split_once(before) else { return text.to_owned() };
    let tail = rest.split_once(end).map_or("", |(_, tail)| tail);
    format!("{head}{before}{end}{tail}")
}

fn n_made(server: &Server) -> u64 {
    server.engine.stats().scheduler.counters.output_tokens
}

fn letters() -> Vec<u32> {
    (u32::from(b'a')..=u32::from(b'z')).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_equal_request_reads_the_same_bytes_and_generates_nothing() {
    let server = Server::start(caching()).await;
    let usage = json!({"include_usage": true, "continuous_usage_stats": true});
    let requests = [
        ("/v1/chat/completions", chat(json!({"temperature": 0, "max_tokens": 40}))),
        (
            "/v1/chat/completions",
            chat(json!({"seed": 1, "n": 3, "max_tokens": 30, "logprobs": true, "top_logprobs": 3})),
        ),
        (
            "/v1/chat/completions",
            chat(json!({"seed": 1, "n": 2, "max_tokens": 30, "stream": true, "stream_options": usage})),
        ),
        (
            "/v1/completions",
            completion(
                json!({"seed": 2, "max_tokens": 30, "prompt": ["One", "Two"], "echo": true, "logprobs": 2}),
            ),
        ),
        (
            "/v1/completions",
            completion(
                json!({"seed": 3, "max_tokens": 90, "stop": ["a", "e"], "allowed_token_ids": letters()}),
            ),
        ),
        (
            "/v1/completions",
            completion(json!({"seed": 4, "max_tokens": 90, "stop": "ab", "stream": true,
                                              "allowed_token_ids": letters()[..3], "stream_options": usage})),
        ),
        ("/v1/completions", completion(json!({"use_beam_search": true, "n": 2, "max_tokens": 8}))),
        (
            "/v1/completions",
            completion(json!({"prompt": "Hello there", "echo": true, "logprobs": 1, "max_tokens": 0})),
        ),
    ];
    for (path, body) in &requests {
        let first = post(&server, path, body).await;
        assert_eq!(first.header("x-cache"), Some("miss"), "{body}");
        server.idle().await;
        let n_before = n_made(&server);
        for _ in 0..2 {
            let again = post(&server, path, body).await;
            assert_eq!(again.header("x-cache"), Some("hit"), "{body}");
            assert_eq!(shown(&again), shown(&first), "{body}");
        }
        assert_eq!(n_made(&server), n_before, "{body}");
    }
    // The same tokens, told in another way.
    let streamed = post(
        &server,
        "/v1/chat/completions",
        &chat(json!({"temperature": 0, "max_tokens": 40, "stream": true})),
    )
    .await;
    assert_eq!(streamed.header("x-cache"), Some("hit"));
    let metrics = server.connect().await.get("/metrics").await;
    assert!(
        metrics.text().contains("throng_response_cache_requests_total{result=\"hit\"}"),
        "{}",
        metrics.text()
    );
}

#[tokio::test]
async fn a_client_can_decline() {
    let server = Server::start(caching()).await;
    let body = chat(json!({"temperature": 0, "max_tokens": 4})).to_string();
    let mut client = server.connect().await;
    for (field, cache_use) in [
        ("cache-control: no-store", None),
        ("cache-control: no-cache", Some("miss")),
        ("cache-control: max-age=0", Some("hit")),
        ("cache-control: no-cache", Some("miss")),
        ("x-other: 1", Some("hit")),
        ("cache-control: no-store", None),
    ] {
        client.send(post_bytes("/v1/chat/completions", &body, &[field])).await;
        let reply = client.reply().await.expect("an answer");
        assert_eq!((reply.status, reply.header("x-cache")), (200, cache_use), "{field}");
    }
    let drawn = chat(json!({"temperature": 1, "max_tokens": 4}));
    for _ in 0..2 {
        assert_eq!(client.post("/v1/chat/completions", &drawn).await.header("x-cache"), None);
    }
    let off = Server::start(Setup::default()).await;
    assert_eq!(
        post(&off, "/v1/chat/completions", &chat(json!({"temperature": 0}))).await.header("x-cache"),
        None
    );
}

/// A stream that has begun, and its body so far.
async fn begun(server: &Server, path: &str, body: &Value) -> Client {
    let mut client = server.connect().await;
    client.send(post_bytes(path, &body.to_string(), &[])).await;
    client.read_until("data: ").await;
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_streams_share_one_generation_that_outlives_its_first_reader() {
    let mut setup = caching();
    // All readers come before the end, also on a busy machine.
    setup.step_time = Duration::from_millis(25);
    let server = Server::start(setup).await;
    let fields = json!({"temperature": 0, "max_tokens": 120, "ignore_eos": true, "n": 2, "stream": true,
                        "stream_options": {"include_usage": true}});
    let body = chat(fields);
    let leader = begun(&server, "/v1/chat/completions", &body).await;
    let mut clients = Vec::new();
    for _ in 0..16 {
        clients.push(begun(&server, "/v1/chat/completions", &body).await);
    }
    drop(leader);
    let mut replies = Vec::new();
    for mut client in clients {
        replies.push(client.reply().await.expect("an answer"));
    }
    for reply in &replies {
        assert_eq!(reply.header("x-cache"), Some("coalesced"));
        assert_eq!(shown(reply), shown(&replies[0]));
        assert_eq!(reply.events().last().map(String::as_str), Some("[DONE]"));
    }
    server.idle().await;
    assert_eq!(n_made(&server), 240);
    let later = post(&server, "/v1/chat/completions", &body).await;
    assert_eq!((later.header("x-cache"), shown(&later)), (Some("hit"), shown(&replies[0])));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_generation_ends_with_its_last_reader() {
    let mut setup = caching();
    setup.step_time = Duration::from_millis(4);
    let server = Server::start(setup).await;
    let body = completion(json!({"temperature": 0, "max_tokens": 3000, "ignore_eos": true, "stream": true}));
    let clients =
        [begun(&server, "/v1/completions", &body).await, begun(&server, "/v1/completions", &body).await];
    drop(clients);
    server.idle().await;
    assert!(n_made(&server) < 3000);
    let again = completion(json!({"temperature": 0, "max_tokens": 3000, "ignore_eos": true, "stream": true}));
    let mut client = begun(&server, "/v1/completions", &again).await;
    assert!(client.read_until("\r\n\r\n").await.contains("x-cache: miss"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_is_told_to_all_readers_and_is_not_kept() {
    let setup = caching();
    let fault = Some(Fault { at_step: 3, kind: FaultKind::StepHangs });
    let mut impatient = setup.engine.clone();
    impatient.step_timeout_ms = 400;
    let engine = crate::faulty_engine::start(setup.capacity, impatient, fault);
    let server = Server::over(engine, setup).await;
    let body = completion(json!({"temperature": 0, "max_tokens": 30, "ignore_eos": true, "stream": true}));
    let mut clients = vec![begun(&server, "/v1/completions", &body).await];
    for _ in 0..4 {
        clients.push(begun(&server, "/v1/completions", &body).await);
    }
    for (idx, mut client) in clients.into_iter().enumerate() {
        let reply = client.reply().await.expect("an answer");
        assert_eq!(reply.header("x-cache"), Some(if idx == 0 { "miss" } else { "coalesced" }));
        let events = reply.events();
        let last: Value = serde_json::from_str(events.last().expect("events")).expect("json, not [DONE]");
        assert_eq!(last["error"]["code"], "internal_error");
    }
    let again = post(&server, "/v1/completions", &body).await;
    assert_eq!((again.status, again.header("x-cache")), (200, Some("miss")));
}

#[tokio::test]
async fn tenants_do_not_share() {
    let mut setup = caching();
    setup.config.access.api_keys = ["one", "two"].map(Secret::new).to_vec();
    let server = Server::start(setup).await;
    let mut client = server.connect().await;
    let body = chat(json!({"temperature": 0, "max_tokens": 4})).to_string();
    for (key, cache_use) in [("one", "miss"), ("two", "miss"), ("one", "hit"), ("two", "hit")] {
        let authorization = format!("authorization: Bearer {key}");
        client.send(post_bytes("/v1/chat/completions", &body, &[&authorization])).await;
        let reply = client.reply().await.expect("an answer");
        assert_eq!((reply.status, reply.header("x-cache")), (200, Some(cache_use)), "{key}");
    }
}

/// Values that change what is generated, each compared with the request without it.
fn changing(path: &str) -> Vec<(&'static str, Value)> {
    let mut fields = vec![
        ("temperature", json!(0.5)),
        ("top_p", json!(0.5)),
        ("top_k", json!(3)),
        ("min_p", json!(0.25)),
        ("seed", json!(2)),
        ("n", json!(2)),
        ("best_of", json!(2)),
        ("use_beam_search", json!(true)),
        ("max_tokens", json!(5)),
        ("min_tokens", json!(2)),
        ("presence_penalty", json!(0.5)),
        ("frequency_penalty", json!(0.5)),
        ("repetition_penalty", json!(1.5)),
        ("logit_bias", json!({"65": 1})),
        ("allowed_token_ids", json!([65, 66, 67])),
        ("bad_words", json!(["A"])),
        ("stop", json!("A")),
        ("stop_token_ids", json!([65])),
        ("ignore_eos", json!(true)),
        ("truncate_prompt_tokens", json!(2)),
        ("logprobs", if path == "/v1/completions" { json!(2) } else { json!(true) }),
        ("prompt_logprobs", json!(1)),
        ("cache_salt", json!("salt")),
        ("response_format", json!({"type": "json_object"})),
        ("structured_outputs", json!({"choice": ["A", "B"]})),
        ("guided_json", json!({"type": "integer"})),
        ("guided_regex", json!("[0-9]")),
        ("guided_choice", json!(["A"])),
        ("guided_grammar", json!("root ::= \"A\"")),
    ];
    if path == "/v1/completions" {
        fields.extend([("prompt", json!("Hello you")), ("add_special_tokens", json!(null))]);
    } else {
        fields.extend([
            ("messages", json!([{"role": "user", "content": "Hello you"}])),
            ("max_completion_tokens", json!(6)),
            ("top_logprobs", json!(2)),
            ("add_generation_prompt", json!(false)),
        ]);
    }
    fields.retain(|(_, value)| !value.is_null());
    fields
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_can_change_an_answer_is_another_request() {
    let server = Server::start(caching()).await;
    for (path, base) in [
        ("/v1/completions", completion(json!({"seed": 1, "max_tokens": 4}))),
        ("/v1/chat/completions", chat(json!({"seed": 1, "max_tokens": 4}))),
    ] {
        let mut seen = BTreeSet::new();
        assert_eq!(post(&server, path, &base).await.header("x-cache"), Some("miss"));
        for (name, value) in changing(path) {
            let mut body = base.clone();
            match name {
                "top_logprobs" => body["logprobs"] = json!(true),
                "max_completion_tokens" => {
                    drop(body.as_object_mut().expect("an object").remove("max_tokens"))
                }
                _ => {}
            }
            body[name] = value;
            let reply = post(&server, path, &body).await;
            assert_eq!(reply.header("x-cache"), Some("miss"), "{path} {name}: {}", reply.text());
            let again = post(&server, path, &body).await;
            assert_eq!(again.header("x-cache"), Some("hit"), "{path} {name}");
            seen.insert(name);
        }
        // Each of the others is known not to matter, so that a new parameter must be put on one of the lists.
        for (name, value) in NEUTRAL {
            seen.insert(name);
            if value.is_empty() {
                continue;
            }
            let mut body = base.clone();
            body[*name] = serde_json::from_str(value).expect("JSON");
            let reply = post(&server, path, &body).await;
            assert_eq!(reply.header("x-cache"), Some("hit"), "{path} {name}: {}", reply.text());
        }
        let document = server.connect().await.get("/openapi.json").await.json();
        let schema = &document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
        let schema = match schema["$ref"].as_str() {
            Some(reference) => document.pointer(&reference[1..]).expect("a schema"),
            None => schema,
        };
        let names: BTreeSet<&str> =
            schema["properties"].as_object().expect("properties").keys().map(String::as_str).collect();
        let unknown: Vec<_> = names.difference(&seen).collect();
        assert!(unknown.is_empty(), "{path}: not known whether these change the answer: {unknown:?}");
    }
}

/// Parameters that do not change what is generated, with a value that must lead to the kept answer. Those
/// without one are refused, need others beside them that are on the other list, or change the prompt's tokens
/// with other tokenizers.
const NEUTRAL: &[(&str, &str)] = &[
    ("model", "\"org/paper\""),
    ("stream", "true"),
    ("priority", "1"),
    ("user", "\"me\""),
    ("metadata", "{\"a\": \"b\"}"),
    ("store", "true"),
    ("service_tier", "\"flex\""),
    ("request_id", "\"mine\""),
    ("session_id", "\"mine\""),
    ("safety_identifier", "\"mine\""),
    ("prompt_cache_key", "\"mine\""),
    ("return_token_ids", "true"),
    ("skip_special_tokens", "false"),
    ("speculative.n_max", "2"),
    ("add_special_tokens", ""),
    ("spaces_between_special_tokens", ""),
    ("include_stop_str_in_output", ""),
    ("return_tokens_as_token_ids", ""),
    ("stream_options", ""),
    ("include_timings", "true"),
    ("truncation_side", ""),
    ("early_stopping", ""),
    ("length_penalty", ""),
    ("echo", ""),
    ("ebnf", ""),
    ("grammar", ""),
    ("guided_decoding_backend", ""),
    ("guided_whitespace_pattern", ""),
    ("json_schema", ""),
    ("regex", ""),
    ("structural_tag", ""),
    ("kv_transfer_params", ""),
    ("logits_processor_args", ""),
    ("logits_processors", ""),
    ("logprob_token_ids", ""),
    ("prompt_cache_retention", "\"24h\""),
    ("prompt_embeds", ""),
    ("repetition_detection", ""),
    ("return_prompt_text", ""),
    ("stream_interval", ""),
    ("suffix", ""),
    ("thinking_token_budget", ""),
    ("vllm_xargs", ""),
    ("audio", ""),
    ("function_call", ""),
    ("functions", ""),
    ("media_io_kwargs", ""),
    ("modalities", ""),
    ("prediction", ""),
    ("verbosity", ""),
    ("web_search_options", ""),
    ("chat_template", ""),
    ("chat_template_kwargs", ""),
    ("continue_final_message", ""),
    ("documents", ""),
    ("tools", ""),
    ("tool_choice", ""),
    ("parallel_tool_calls", ""),
    ("reasoning_effort", ""),
    ("include_reasoning", ""),
    ("mm_processor_kwargs", ""),
];
