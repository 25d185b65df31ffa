//! OpenAI's Responses over a socket: whole and streamed answers say the same, in that API's form.

use crate::api::tool_calls::{TWO, scripted};
use crate::harness::{Client, MAX_LEN};
use serde_json::{Value, json};
use throng_text::{ReasoningFormat, ToolCallFormat};

/// A request whose answer will be `answer`.
pub(super) fn asking(answer: &str, fields: Value) -> Value {
    let mut body = json!({
        "model": "paper", "max_output_tokens": 900, "instructions": "Be brief.", "input": format!("{{{{{answer}}}}}"),
    });
    body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    body
}

fn tools() -> Value {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    json!([{"type": "function", "name": "get_weather", "description": "d", "parameters": schema},
           {"type": "namespace", "name": "clock", "description": "c", "tools": [
               {"type": "function", "name": "now", "parameters": {"type": "object"}}]}])
}

/// The data of a stream's events, whose names and numbers must be right.
pub(super) fn events(text: &str) -> Vec<Value> {
    let (text, end) = text.trim_end().rsplit_once("\n\n").expect("events");
    assert_eq!(end, "data: [DONE]");
    let event = |(number, frame): (usize, &str)| {
        let (name, data) = frame.split_once("\ndata: ").expect("a named event");
        let data: Value = serde_json::from_str(data).expect("JSON");
        assert_eq!(
            (&data["type"], &data["sequence_number"]),
            (&json!(name.strip_prefix("event: ")), &json!(number))
        );
        data
    };
    text.split("\n\n").enumerate().map(event).collect()
}

/// The items of a stream, put together from their pieces.
fn assembled(events: &[Value]) -> Vec<Value> {
    let mut items: Vec<Value> = Vec::new();
    let append = |to: &mut Value, more: &Value| {
        *to = format!("{}{}", to.as_str().unwrap_or_default(), more.as_str().expect("text")).into();
    };
    for data in events {
        let idx = data["output_index"].as_u64().unwrap_or_default() as usize;
        let kind = data["type"].as_str().expect("a type");
        match kind.strip_prefix("response.").unwrap_or(kind) {
            "output_item.added" => {
                assert_eq!((items.len(), &data["item"]["status"]), (idx, &json!("in_progress")));
                items.push(data["item"].clone());
            }
            "content_part.added" => {
                items[idx]["content"] = json!([data["part"]]);
                assert_eq!(data["item_id"], items[idx]["id"]);
            }
            "output_text.delta" | "reasoning_text.delta" => {
                append(&mut items[idx]["content"][0]["text"], &data["delta"]);
            }
            "function_call_arguments.delta" => append(&mut items[idx]["arguments"], &data["delta"]),
            "output_item.done" => {
                items[idx]["status"] = data["item"]["status"].clone();
                assert_eq!(items[idx], data["item"]);
            }
            _ => {}
        }
    }
    items
}

/// Takes away what is drawn anew for each answer.
pub(super) fn without_ids(mut response: Value) -> Value {
    for key in ["id", "created_at", "completed_at", "usage"] {
        response[key] = Value::Null;
    }
    for item in response["output"].as_array_mut().into_iter().flatten() {
        for key in ["id", "call_id"] {
            if let Some(text) = item.get_mut(key) {
                assert!(text.as_str().is_some_and(|text| !text.is_empty()), "{key}");
                *text = Value::Null;
            }
        }
    }
    response
}

/// The response, whole and streamed, which must be the same.
async fn answer(client: &mut Client, body: &Value) -> Value {
    let reply = client.post("/v1/responses", body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let whole = reply.json();
    assert_eq!((&whole["object"], &whole["store"]), (&json!("response"), &json!(false)));
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let reply = client.post("/v1/responses", &streamed).await;
    let events = events(reply.text());
    let last = &events.last().expect("an end")["response"];
    assert_eq!(without_ids(last.clone()), without_ids(whole.clone()));
    assert_eq!(last["output"], json!(assembled(&events)));
    whole
}

pub(super) fn kinds(response: &Value) -> Vec<&str> {
    let items = response["output"].as_array().expect("items");
    items.iter().map(|item| item["type"].as_str().expect("a type")).collect()
}

#[tokio::test]
async fn texts_thoughts_and_calls_are_items() {
    let server = scripted(Some(ToolCallFormat::Hermes), Some(ReasoningFormat::Think)).await;
    let mut client = server.connect().await;
    let plain = answer(&mut client, &asking("Good day", json!({}))).await;
    assert_eq!(plain["output"][0]["content"][0]["text"], "Good day");
    assert_eq!((&plain["status"], &plain["instructions"]), (&json!("completed"), &json!("Be brief.")));
    assert_eq!(plain["usage"]["output_tokens"], 9, "eight letters and the end");
    let count = client.post("/v1/responses/input_tokens", &asking("Good day", json!({}))).await.json();
    assert_eq!(
        count,
        json!({"object": "response.input_tokens", "input_tokens": plain["usage"]["input_tokens"]})
    );

    let thought = answer(&mut client, &asking("<think>hm</think>Yes", json!({}))).await;
    assert_eq!(kinds(&thought), ["reasoning", "message"]);
    assert_eq!(thought["output"][0]["content"], json!([{"type": "reasoning_text", "text": "hm"}]));
    let sealed = json!({"include": ["reasoning.encrypted_content"], "reasoning": {"summary": "auto"}});
    let reply = client.post("/v1/responses", &asking("<think>hm</think>Yes", sealed)).await.json();
    assert_eq!(reply["output"][0]["summary"], json!([{"type": "summary_text", "text": "hm"}]));
    assert!(reply["output"][0]["encrypted_content"].is_string());

    let called = answer(&mut client, &asking(TWO, json!({"tools": tools()}))).await;
    assert_eq!(kinds(&called), ["message", "function_call", "function_call"]);
    let arguments: Value =
        serde_json::from_str(called["output"][1]["arguments"].as_str().expect("text")).expect("JSON");
    assert_eq!(arguments, json!({"city": "São Paulo"}));
    assert_eq!(called["output"][2]["namespace"], "clock");
    let once = json!({"tools": tools(), "parallel_tool_calls": false});
    assert_eq!(kinds(&answer(&mut client, &asking(TWO, once)).await), ["message", "function_call"]);

    let cut = answer(&mut client, &asking("one two", json!({"max_output_tokens": 3}))).await;
    assert_eq!(cut["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!((&cut["status"], &cut["output"][0]["status"]), (&json!("incomplete"), &json!("incomplete")));
}

#[tokio::test]
async fn answers_go_back_as_history_with_the_results_of_their_calls() {
    let server = scripted(Some(ToolCallFormat::Hermes), None).await;
    let mut client = server.connect().await;
    let called = answer(&mut client, &asking(TWO, json!({"tools": tools()}))).await;
    let mut input = vec![json!({"role": "user", "content": "Hi"})];
    input.extend(called["output"].as_array().expect("items").iter().cloned());
    for (idx, result) in [(2, json!([{"type": "input_text", "text": "noon"}])), (1, json!("rain"))] {
        let call_id = &called["output"][idx]["call_id"];
        input.push(json!({"type": "function_call_output", "call_id": call_id, "output": result}));
    }
    input.push(json!({"role": "user", "content": [{"type": "input_text", "text": "{{Thanks}}"}]}));
    let last = answer(&mut client, &asking("", json!({"input": input, "tools": tools()}))).await;
    assert_eq!(last["output"][0]["content"][0]["text"], "Thanks");
}

#[tokio::test]
async fn the_oldest_turns_are_left_out_where_that_is_allowed() {
    let server = scripted(None, None).await;
    let mut client = server.connect().await;
    let old = json!({"role": "user", "content": "x".repeat(MAX_LEN as usize / 3)});
    let input = json!([old, old, old, {"role": "user", "content": "{{Here}}"}]);
    let wanted = |truncation: &str| {
        asking("", json!({"input": input, "truncation": truncation, "max_output_tokens": 9}))
    };
    let refused = client.post("/v1/responses", &wanted("disabled")).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!("context_length_exceeded")));
    let kept = answer(&mut client, &wanted("auto")).await;
    assert_eq!(kept["output"][0]["content"][0]["text"], "Here");
}

#[tokio::test]
async fn what_cannot_be_done_is_refused_by_name() {
    let server = scripted(None, None).await;
    let mut client = server.connect().await;
    for (fields, status, param) in [
        (json!({"input": []}), 400, "input"),
        (json!({"input": null}), 400, "input"),
        (json!({"model": "absent"}), 404, "model"),
        (json!({"store": true}), 400, "store"),
        (json!({"background": true}), 400, "background"),
        (json!({"previous_response_id": "resp_1"}), 400, "previous_response_id"),
        (json!({"conversation": {"id": "conv_1"}}), 404, "conversation"),
        (json!({"conversation": "conv_1", "previous_response_id": "resp_1"}), 400, "previous_response_id"),
        (json!({"input": [{"type": "item_reference", "id": "msg_1"}]}), 404, "input"),
        (json!({"input": [{"type": "message", "content": "a"}]}), 400, "input[0].role"),
        (json!({"input": [{"type": "web_search_call"}]}), 400, "input[0]"),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
            400,
            "input[0].content[0]",
        ),
        (json!({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}), 400, "input"),
        (json!({"tools": [{"type": "web_search"}]}), 400, "tools[0].type"),
        (json!({"tools": [{"type": "mcp", "server_label": "x"}]}), 400, "tools[0].type"),
        (json!({"tool_choice": "required"}), 400, "tool_choice"),
        (json!({"tool_choice": {"type": "function", "name": "x"}, "tools": tools()}), 400, "tool_choice"),
        (json!({"text": {"format": {"type": "json_schema", "name": "x"}}}), 400, "text.format.schema"),
        (json!({"prompt": {"id": "p"}}), 400, "prompt"),
        (json!({"context_management": [{"type": "compaction"}]}), 400, "context_management"),
        (json!({"temperature": 3}), 400, "temperature"),
    ] {
        let reply = client.post("/v1/responses", &asking("a", fields.clone())).await;
        let error = reply.json()["error"].clone();
        assert_eq!((reply.status, &error["param"]), (status, &json!(param)), "{fields}: {error}");
        assert_eq!(error["type"], "invalid_request_error");
    }
    let ignored = json!({"client_metadata": {"a": "b"}, "mood": 1});
    let reply = client.post("/v1/responses", &asking("a", ignored)).await;
    assert_eq!(reply.header("x-throng-ignored"), Some("client_metadata, mood"));
    client.send("GET /v1/responses/resp_1 HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert_eq!(client.reply().await.expect("an answer").status, 404);
}

#[tokio::test]
async fn a_conversation_is_made_short() {
    let server = scripted(None, None).await;
    let mut client = server.connect().await;
    let input =
        json!([{"role": "user", "content": "{{In short}}"}, {"role": "assistant", "content": "long"}]);
    let short = client.post("/v1/responses/compact", &json!({"model": "paper", "input": input})).await.json();
    assert_eq!(short["object"], "response.compaction");
    assert_eq!(kinds(&short), ["message", "compaction"]);
    let mut again = short["output"].as_array().expect("items").clone();
    again.push(json!({"role": "user", "content": "{{Yes}}"}));
    let after = answer(&mut client, &asking("", json!({"input": again}))).await;
    assert_eq!(after["output"][0]["content"][0]["text"], "Yes");
}
