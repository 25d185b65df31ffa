//! Upstream engines asked through APIs that they do not have: what they answer, how they fail, what is
//! counted.

use std::time::Duration;

use serde_json::{Value, json};
use throng_store::{LimitKind, Limits, UsageQuery};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::upstream_engines::{Place, Scripted, read_request, replica, stream, whole};
use crate::harness::{PATIENCE, Reply, Server, Setup, chat, completion};

fn message(fields: Value) -> Value {
    let mut body =
        json!({"model": "paper", "max_tokens": 20, "messages": [{"role": "user", "content": "Hi"}]});
    body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    body
}

/// The data of a stream's named events.
fn named_events(reply: &Reply) -> Vec<Value> {
    let data = reply.text().lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).expect("JSON")).collect()
}

fn part(delta: &str, reason: &str) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":{reason}}}]}}\n\n")
}

const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":7,\
                     \"completion_tokens_details\":{\"reasoning_tokens\":2}}}\n\n";

#[tokio::test]
async fn an_engine_answers_in_the_form_of_the_api_that_asks() {
    let calls = r#"{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]}"#;
    let parts =
        [part(r#"{"reasoning":"hm"}"#, "null"), part(r#"{"content":"Good "}"#, "null"), part(calls, "null")];
    let streamed =
        stream(&format!("{}{}{USAGE}data: [DONE]\n\n", parts.concat(), part("{}", "\"tool_calls\"")));
    let told = json!({"role": "assistant", "content": "Good ", "reasoning_content": "hm", "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}}
    ]});
    let usage = json!({"prompt_tokens": 11, "completion_tokens": 7, "completion_tokens_details": {"reasoning_tokens": 2}});
    let told =
        json!({"choices": [{"index": 0, "message": told, "finish_reason": "tool_calls"}], "usage": usage});
    let at_once = whole(200, &told.to_string());
    let engine = Scripted::start(move |n| if n % 2 == 0 { at_once.clone() } else { streamed.clone() }).await;
    let place = Place::start(&[replica(engine.address, "there")]).await;
    place.until(1, "ready").await;
    let tools = json!([{"name": "f", "input_schema": {"type": "object"}}]);
    let asked = message(json!({"tools": tools, "thinking": {"type": "enabled", "budget_tokens": 1024}}));
    let reply = place.ask("/v1/messages", &asked).await;
    let told = reply.json();
    let blocks = told["content"].as_array().expect("blocks").iter();
    let kinds: Vec<_> = blocks.map(|block| block["type"].as_str().expect("a type")).collect();
    assert_eq!((reply.status, kinds), (200, vec!["thinking", "text", "tool_use"]), "{told}");
    assert_eq!((&told["stop_reason"], &told["content"][2]["input"]), (&json!("tool_use"), &json!({"x": 1})));
    assert_eq!((&told["usage"]["input_tokens"], &told["usage"]["output_tokens"]), (&json!(11), &json!(7)));
    assert_eq!(
        (&told["usage"]["output_tokens_details"]["thinking_tokens"], &told["model"]),
        (&json!(2), &json!("paper"))
    );
    assert_eq!(reply.header("x-throng-ignored"), Some("thinking_token_budget"));
    let sent = engine.last.lock().expect("no panic").clone();
    let (head, sent) = sent.split_once("\r\n\r\n").expect("a request");
    let sent: Value = serde_json::from_str(sent).expect("JSON");
    assert!(head.starts_with("POST /v1/chat/completions "), "{head}");
    assert_eq!((&sent["model"], &sent["tools"][0]["function"]["name"]), (&json!("there"), &json!("f")));

    let events = named_events(
        &place
            .ask("/v1/messages", &{
                let mut streaming = asked.clone();
                streaming["stream"] = json!(true);
                streaming
            })
            .await,
    );
    let types: Vec<_> = events.iter().map(|event| event["type"].as_str().expect("a type")).collect();
    assert_eq!(types.first(), Some(&"message_start"));
    assert_eq!(types[types.len() - 2..], ["message_delta", "message_stop"]);
    let end = &events[events.len() - 2];
    assert_eq!(
        (&end["delta"]["stop_reason"], &end["usage"]["output_tokens"]),
        (&json!("tool_use"), &json!(7))
    );

    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let body = json!({"model": "paper", "stream": false, "tools": tools, "messages": [{"role": "user", "content": "Hi"}]});
    let told = place.ask("/api/chat", &body).await.json();
    let call = json!([{"function": {"name": "f", "arguments": {"x": 1}}}]);
    assert_eq!(
        told["message"],
        json!({"role": "assistant", "content": "Good ", "thinking": "hm", "tool_calls": call})
    );
    assert_eq!((&told["eval_count"], &told["prompt_eval_count"]), (&json!(7), &json!(11)));
}

#[tokio::test]
async fn errors_of_engines_have_the_form_of_the_api_and_other_engines_are_asked_before() {
    let too_long = r#"{"error":{"message":"maximum context length is 10 tokens","code":400}}"#;
    for (answer, status, kind, words) in [
        (whole(500, r#"{"error":"a secret path"}"#), 502, "api_error", "failed"),
        (whole(429, "{}"), 503, "overloaded_error", "busy"),
        (whole(400, too_long), 400, "invalid_request_error", "prompt is too long: maximum context length"),
        (whole(422, r#"{"detail":"no such tool"}"#), 422, "invalid_request_error", "no such tool"),
        (whole(400, "<html>"), 400, "invalid_request_error", "rejects"),
        (whole(200, r#"{"choices":[{"index":3,"message":{"content":"a"}}]}"#), 502, "api_error", "failed"),
    ] {
        let engine = Scripted::start(move |_| answer.clone()).await;
        let place = Place::start(&[replica(engine.address, "x")]).await;
        place.until(1, "ready").await;
        let reply = place.ask("/v1/messages", &message(json!({}))).await;
        let told = reply.json();
        assert_eq!((reply.status, &told["error"]["type"]), (status, &json!(kind)), "{told}");
        let said = told["error"]["message"].as_str().expect("a message");
        assert!(said.contains(words) && !said.contains("secret"), "{said}");
        let told = place.ask("/api/chat", &message(json!({"max_tokens": null}))).await;
        assert!(told.status == status && told.json()["error"].is_string(), "{}", told.text());
    }
    // In the middle of a stream its client is told; before the first token another engine answers.
    let broken = stream(&part(r#"{"content":"a"}"#, "null"));
    let engine = Scripted::start(move |_| broken.clone()).await;
    let place = Place::start(&[replica(engine.address, "x")]).await;
    place.until(1, "ready").await;
    let events = named_events(&place.ask("/v1/messages", &message(json!({"stream": true}))).await);
    let last = events.last().expect("events");
    assert_eq!((&last["type"], &last["error"]["type"]), (&json!("error"), &json!("api_error")), "{events:?}");
    let bad = Scripted::start(|_| stream(": nothing\n\n")).await;
    let good = Server::start(Setup::default()).await;
    let place = Place::start(&[replica(bad.address, "x"), replica(good.address, "org/paper")]).await;
    place.until(2, "ready").await;
    for is_streaming in [true, false].repeat(10) {
        let reply = place.ask("/v1/messages", &message(json!({"stream": is_streaming}))).await;
        let is_whole = reply.text().contains(if is_streaming { "message_stop" } else { "end_turn" })
            || reply.text().contains("max_tokens");
        assert!(reply.status == 200 && is_whole, "{}", reply.text());
    }
    assert!((1..=6).contains(&bad.n_asked()), "{}", bad.n_asked());
}

#[tokio::test]
async fn keys_limits_and_the_ledger_hold_whichever_api_asks() {
    let engine = Server::start(Setup::default()).await;
    let limits = Limits::of([(LimitKind::TokensPerMinute, 2_000)]);
    let place = Place::with_limits(&[replica(engine.address, "org/paper")], Some(limits)).await;
    let mut expected = [0, 0];
    for is_streaming in [false, true] {
        let reply = place.ask("/v1/messages", &message(json!({"stream": is_streaming}))).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        let usage = match is_streaming {
            false => reply.json()["usage"].clone(),
            true => named_events(&reply)
                .iter()
                .rev()
                .find(|event| event["type"] == "message_delta")
                .expect("an end")["usage"]
                .clone(),
        };
        let n = |key: &str| usage[key].as_u64().expect("a number");
        expected[0] += n("input_tokens") + n("cache_read_input_tokens");
        expected[1] += n("output_tokens");
    }
    let refused = place.ask("/v1/messages", &message(json!({"max_tokens": 5_000}))).await;
    assert_eq!(
        (refused.status, &refused.json()["error"]["code"]),
        (400, &json!("request_exceeds_rate_limit"))
    );
    let (ledger, store) = place.ledger.as_ref().expect("opened");
    let counting = async {
        loop {
            ledger.write().await.expect("written");
            let all = UsageQuery { end_unix_s: u64::MAX >> 1, ..UsageQuery::default() };
            let row = store.usage(&all).await.expect("read").into_iter().next().unwrap_or_default();
            if row.n_requests == 2 {
                return [row.prompt_tokens, row.generated_tokens];
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert_eq!(tokio::time::timeout(PATIENCE, counting).await.expect("both are written"), expected);
    let mut stranger = place.client().await;
    let refused = stranger.post("/v1/messages", &message(json!({}))).await;
    assert_eq!((refused.status, &refused.json()["error"]["type"]), (401, &json!("authentication_error")));
}

#[tokio::test]
async fn usage_in_chunks_is_for_those_who_asked_for_it() {
    let chunk = |text: &str, reason: &str| {
        format!(
            "data: {{\"id\":\"x\",\"choices\":[{{\"index\":0,\"text\":\"{text}\",\"finish_reason\":{reason}}}],\
             \"usage\":{{\"prompt_tokens\":3,\"completion_tokens\":1}},\"extra\":1.50}}\n\n"
        )
    };
    let events = format!("{}{}{USAGE}data: [DONE]\n\n", chunk("a", "null"), chunk("b", "\"stop\""));
    let engine = Scripted::start(move |_| stream(&events)).await;
    let place = Place::start(&[replica(engine.address, "x")]).await;
    place.until(1, "ready").await;
    for (options, n_usages, n_chunks) in [
        (json!(null), 0, 2),
        (json!({"include_usage": false}), 0, 2),
        (json!({"include_usage": true}), 3, 3),
        (json!({"continuous_usage_stats": true}), 2, 2),
    ] {
        let body = completion(json!({"stream": true, "stream_options": options}));
        let reply = place.ask("/v1/completions", &body).await;
        let chunks = reply.chunks();
        let n_told = chunks.iter().filter(|chunk| chunk.get("usage").is_some()).count();
        assert_eq!((n_told, chunks.len()), (n_usages, n_chunks), "{}", reply.text());
        assert_eq!(reply.text().matches(r#""extra":1.50"#).count(), 2);
    }
}

#[tokio::test]
async fn a_request_waits_for_the_first_probe_of_an_engine() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound socket");
    let (probed, may_answer) = (tokio::sync::Notify::new(), tokio::sync::Notify::new());
    let [probed, may_answer] = [probed, may_answer].map(std::sync::Arc::new);
    let (telling, waiting) = (probed.clone(), may_answer.clone());
    tokio::spawn(async move {
        for number in 0.. {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            read_request(&mut stream).await;
            if number == 0 {
                telling.notify_one();
                waiting.notified().await;
            }
            let told = r#"{"choices":[{"index":0,"message":{"content":"here"},"finish_reason":"stop"}]}"#;
            let _ = stream.write_all(whole(200, told).as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    let place = Place::start(&[replica(address, "x")]).await;
    probed.notified().await;
    let body = chat(json!({}));
    let asking = place.ask("/v1/chat/completions", &body);
    let (reply, ()) = tokio::join!(asking, async {
        // The request is there, or will be: either way it is answered.
        tokio::time::sleep(Duration::from_millis(50)).await;
        may_answer.notify_one();
    });
    assert_eq!(reply.json()["choices"][0]["message"]["content"], "here", "{}", reply.text());
}

#[tokio::test]
async fn an_engine_answers_responses_and_is_not_asked_to_count_messages() {
    let told = json!({"role": "assistant", "content": "Good day"});
    let usage = json!({"prompt_tokens": 3, "completion_tokens": 2});
    let told = json!({"choices": [{"index": 0, "message": told, "finish_reason": "stop"}], "usage": usage});
    let at_once = whole(200, &told.to_string());
    let engine = Scripted::start(move |_| at_once.clone()).await;
    let place = Place::start(&[replica(engine.address, "there")]).await;
    place.until(1, "ready").await;
    let told = place.ask("/v1/responses", &json!({"model": "paper", "input": "Hi"})).await.json();
    assert_eq!(
        (&told["status"], &told["output"][0]["content"][0]["text"], &told["usage"]["input_tokens"]),
        (&json!("completed"), &json!("Good day"), &json!(3)),
        "{told}"
    );
    for (path, body) in [
        ("/v1/responses/input_tokens", json!({"model": "paper", "input": "Hi"})),
        ("/v1/messages/count_tokens", message(json!({}))),
    ] {
        let reply = place.ask(path, &body).await;
        let told = reply.json();
        assert_eq!(reply.status, 400, "{path}: {told}");
        assert!(told["error"]["message"].as_str().is_some_and(|why| why.contains("counted")), "{told}");
    }
}
