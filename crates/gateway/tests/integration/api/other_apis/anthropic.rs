//! Anthropic's Messages over a socket: whole and streamed answers say the same, in that API's form.

use crate::api::tool_calls::{TWO, scripted};
use crate::harness::{Client, MAX_LEN};
use serde_json::{Value, json};
use throng_text::{ReasoningFormat, ToolCallFormat};

/// A request whose answer will be `answer`.
fn asking(answer: &str, fields: Value) -> Value {
    let mut body = json!({
        "model": "paper", "max_tokens": 900, "system": [{"type": "text", "text": "Be brief."}],
        "messages": [{"role": "user", "content": format!("{{{{{answer}}}}}")}],
    });
    body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    body
}

fn tools() -> Value {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    json!([{"name": "get_weather", "description": "d", "input_schema": schema},
           {"name": "now", "input_schema": {"type": "object"}, "type": "custom"}])
}

/// The names and data of a stream's events.
fn events(text: &str) -> Vec<(String, Value)> {
    let frames = text.split_terminator("\n\n").filter(|frame| !frame.starts_with(':'));
    let event = |frame: &str| {
        let (name, data) = frame.split_once("\ndata: ").expect("a named event");
        let name = name.strip_prefix("event: ").expect("a name").to_owned();
        let data: Value = serde_json::from_str(data).expect("JSON");
        assert_eq!(data["type"], *name);
        (name, data)
    };
    frames.map(event).collect()
}

/// The message of a stream, put together as Anthropic's libraries do.
fn assembled(events: &[(String, Value)]) -> Value {
    let mut message = Value::Null;
    let mut inputs = Vec::new();
    for (name, data) in events {
        let idx = data["index"].as_u64().unwrap_or_default() as usize;
        let append = |to: &mut Value, more: &Value| {
            *to = format!("{}{}", to.as_str().unwrap_or_default(), more.as_str().expect("text")).into();
        };
        match name.as_str() {
            "message_start" => message = data["message"].clone(),
            "content_block_start" => {
                let blocks = message["content"].as_array_mut().expect("blocks");
                assert_eq!(blocks.len(), idx);
                blocks.push(data["content_block"].clone());
                inputs.push(String::new());
            }
            "content_block_delta" => {
                let (block, delta) = (&mut message["content"][idx], &data["delta"]);
                match delta["type"].as_str().expect("a type") {
                    "text_delta" => append(&mut block["text"], &delta["text"]),
                    "thinking_delta" => append(&mut block["thinking"], &delta["thinking"]),
                    "signature_delta" => block["signature"] = delta["signature"].clone(),
                    _ => inputs[idx].push_str(delta["partial_json"].as_str().expect("text")),
                }
            }
            "content_block_stop" if message["content"][idx]["type"] == "tool_use" => {
                message["content"][idx]["input"] = serde_json::from_str(&inputs[idx]).unwrap_or(json!({}));
            }
            "message_delta" => {
                message["stop_reason"] = data["delta"]["stop_reason"].clone();
                message["stop_sequence"] = data["delta"]["stop_sequence"].clone();
                message["usage"] = data["usage"].clone();
            }
            _ => {}
        }
    }
    assert_eq!(events.last().map(|(name, _)| name.as_str()), Some("message_stop"));
    message
}

/// Takes away what is drawn anew for each answer.
fn without_ids(mut message: Value) -> Value {
    message["id"] = Value::Null;
    message["usage"]["input_tokens"] = Value::Null;
    message["usage"]["cache_read_input_tokens"] = Value::Null;
    for block in message["content"].as_array_mut().into_iter().flatten() {
        for key in ["id", "signature"] {
            if let Some(text) = block.get_mut(key) {
                assert!(text.as_str().is_some_and(|text| !text.is_empty()), "{key}");
                *text = Value::Null;
            }
        }
    }
    message
}

/// The answer, whole and streamed, which must be the same.
async fn answer(client: &mut Client, body: &Value) -> Value {
    let reply = client.post("/v1/messages", body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let whole = reply.json();
    assert_eq!((&whole["type"], &whole["role"]), (&json!("message"), &json!("assistant")));
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let reply = client.post("/v1/messages", &streamed).await;
    let streamed = assembled(&events(reply.text()));
    assert_eq!(without_ids(streamed), without_ids(whole.clone()));
    whole
}

#[tokio::test]
async fn texts_thoughts_and_calls_are_blocks() {
    let server = scripted(Some(ToolCallFormat::Hermes), Some(ReasoningFormat::Think)).await;
    for (mut client, _front) in server.directly_and_through_a_gateway().await {
        let plain = answer(&mut client, &asking("Good day", json!({}))).await;
        assert_eq!(plain["content"], json!([{"type": "text", "text": "Good day"}]));
        assert_eq!((&plain["stop_reason"], &plain["stop_sequence"]), (&json!("end_turn"), &Value::Null));
        let usage = &plain["usage"];
        assert_eq!(usage["output_tokens"], 9, "eight letters and the end");
        let n_input = |usage: &Value| {
            usage["input_tokens"].as_u64().expect("a number")
                + usage["cache_read_input_tokens"].as_u64().expect("one")
        };
        let count = server
            .connect()
            .await
            .post("/v1/messages/count_tokens", &asking("Good day", json!({})))
            .await
            .json();
        assert_eq!(count, json!({"input_tokens": n_input(usage)}));

        let thinking = json!({"thinking": {"type": "enabled", "budget_tokens": 1024}});
        let thought = answer(&mut client, &asking("<think>hm</think>Yes", thinking)).await;
        let kinds: Vec<_> =
            thought["content"].as_array().expect("blocks").iter().map(|b| &b["type"]).collect();
        assert_eq!(kinds, ["thinking", "text"]);
        assert_eq!(thought["content"][0]["thinking"], "hm");
        let hidden = answer(&mut client, &asking("<think>hm</think>Yes", json!({}))).await;
        assert_eq!(hidden["content"], json!([{"type": "text", "text": "Yes"}]));

        let called = answer(&mut client, &asking(TWO, json!({"tools": tools()}))).await;
        assert_eq!(called["stop_reason"], "tool_use");
        assert_eq!(called["content"][0], json!({"type": "text", "text": "I look."}));
        let calls = &called["content"].as_array().expect("blocks")[1..];
        assert_eq!(calls[0]["input"], json!({"city": "São Paulo"}));
        assert_eq!((&calls[1]["name"], &calls[1]["input"]), (&json!("now"), &json!({})));

        let stopped = answer(&mut client, &asking("one two", json!({"stop_sequences": [" tw"]}))).await;
        assert_eq!(
            (&stopped["stop_reason"], &stopped["stop_sequence"]),
            (&json!("stop_sequence"), &json!(" tw"))
        );
        let cut = answer(&mut client, &asking("one two", json!({"max_tokens": 3}))).await;
        assert_eq!((&cut["stop_reason"], &cut["content"][0]["text"]), (&json!("max_tokens"), &json!("one")));
    }
}

#[tokio::test]
async fn answers_go_back_as_history_with_the_results_of_their_calls() {
    let server = scripted(Some(ToolCallFormat::Hermes), None).await;
    for (mut client, _front) in server.directly_and_through_a_gateway().await {
        let called = answer(&mut client, &asking(TWO, json!({"tools": tools()}))).await;
        let ids: Vec<&Value> = [1, 2].iter().map(|idx| &called["content"][*idx]["id"]).collect();
        let results = json!([
            {"type": "tool_result", "tool_use_id": ids[0], "content": "rain"},
            {"type": "tool_result", "tool_use_id": ids[1], "content": [{"type": "text", "text": "noon"}], "is_error": false},
            {"type": "text", "text": "{{Thanks}}"},
        ]);
        let history = json!([
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": called["content"]},
            {"role": "user", "content": results},
        ]);
        let last = answer(&mut client, &asking("", json!({"messages": history, "tools": tools()}))).await;
        assert_eq!(last["content"], json!([{"type": "text", "text": "Thanks"}]));
        let prefilled =
            json!([{"role": "user", "content": "{{more}}"}, {"role": "assistant", "content": "So"}]);
        let more = answer(&mut client, &asking("", json!({"messages": prefilled}))).await;
        assert_eq!(more["content"][0]["text"], "more");
    }
}

/// Agents ask for the most tokens that their model could give, whatever the context has left.
#[tokio::test]
async fn an_answer_that_the_context_ends_says_so() {
    let server = scripted(None, None).await;
    for (mut client, _front) in server.directly_and_through_a_gateway().await {
        let n_most = u64::from(MAX_LEN);
        let short = answer(&mut client, &asking("Good day", json!({"max_tokens": 10 * n_most}))).await;
        assert_eq!(short["stop_reason"], "end_turn");
        let letters = "a".repeat(MAX_LEN as usize * 6 / 10);
        let cut = answer(&mut client, &asking(&letters, json!({"max_tokens": 10 * n_most}))).await;
        assert_eq!(cut["stop_reason"], "model_context_window_exceeded");
        let n_output = cut["usage"]["output_tokens"].as_u64().expect("a number");
        let n_input = server
            .connect()
            .await
            .post("/v1/messages/count_tokens", &asking(&letters, json!({})))
            .await
            .json();
        assert_eq!(n_input["input_tokens"].as_u64().map(|n| n + n_output), Some(n_most));
        // Exactly what fits is a limit of the client's own.
        let exact = answer(&mut client, &asking(&letters, json!({"max_tokens": n_output}))).await;
        assert_eq!(exact["stop_reason"], "max_tokens");
    }
}

#[tokio::test]
async fn errors_and_lists_have_the_form_of_the_api() {
    let server = scripted(None, None).await;
    for (mut client, _front) in server.directly_and_through_a_gateway().await {
        for (body, status, kind, word) in [
            (json!({"model": "paper", "messages": []}), 400, "invalid_request_error", "messages"),
            (asking("a", json!({"max_tokens": null})), 400, "invalid_request_error", "max_tokens"),
            (
                asking(&"a".repeat(MAX_LEN as usize), json!({})),
                400,
                "invalid_request_error",
                "prompt is too long: ",
            ),
            (asking("a", json!({"model": "absent"})), 404, "not_found_error", "absent"),
            (
                asking("a", json!({"tools": [{"type": "bash_20250124", "name": "bash"}]})),
                400,
                "invalid_request_error",
                "tools[0].type",
            ),
            (
                asking(
                    "a",
                    json!({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}),
                ),
                400,
                "invalid_request_error",
                "messages[0].content[0]",
            ),
        ] {
            let reply = client.post("/v1/messages", &body).await;
            let error = reply.json();
            assert_eq!(
                (reply.status, &error["type"], &error["error"]["type"]),
                (status, &json!("error"), &json!(kind)),
                "{body}"
            );
            assert!(
                error["error"]["message"].as_str().is_some_and(|message| message.contains(word)),
                "{error}"
            );
        }
        let request = "GET /v1/models HTTP/1.1\r\nhost: localhost\r\nanthropic-version: 2023-06-01\r\n\r\n";
        client.send(request).await;
        let page = client.reply().await.expect("a page").json();
        assert_eq!((&page["data"][0]["type"], &page["data"][0]["id"]), (&json!("model"), &json!("paper")));
        assert_eq!((&page["has_more"], &page["first_id"]), (&json!(false), &json!("paper")));
    }
}
