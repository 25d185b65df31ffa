//! Ollama's API over a socket: whole and streamed answers say the same, in that API's form.

use crate::api::tool_calls::{TWO, scripted};
use crate::harness::{Client, Front};
use serde_json::{Value, json};
use throng_text::{ReasoningFormat, ToolCallFormat};

/// A chat whose answer will be `answer`.
fn asking(answer: &str, fields: Value) -> Value {
    let mut body =
        json!({"model": "paper", "messages": [{"role": "user", "content": format!("{{{{{answer}}}}}")}]});
    body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    body
}

fn tools() -> Value {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    json!([{"type": "function", "function": {"name": "get_weather", "parameters": schema}},
           {"type": "function", "function": {"name": "now"}}])
}

/// The answer, whole and put together from lines, which must be the same.
async fn answer(client: &mut Client, path: &str, body: &Value) -> Value {
    let mut whole = body.clone();
    whole["stream"] = json!(false);
    let reply = client.post(path, &whole).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let whole = reply.json();
    let reply = client.post(path, body).await;
    assert_eq!(reply.header("content-type"), Some("application/x-ndjson"));
    let lines: Vec<Value> =
        reply.text().lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    let (last, pieces) = lines.split_last().expect("lines");
    assert!(pieces.iter().all(|line| line["done"] == false) && last["done"] == true);
    for key in ["done_reason", "eval_count", "prompt_eval_count"] {
        assert_eq!(last[key], whole[key], "{key}");
    }
    for pointer in ["/message/content", "/message/thinking", "/response"] {
        let texts = pieces.iter().filter_map(|line| line.pointer(pointer)?.as_str());
        let said = whole.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        assert_eq!(texts.collect::<String>(), said, "{pointer}");
    }
    let calls: Vec<&Value> =
        pieces.iter().filter_map(|line| line["message"]["tool_calls"].as_array()).flatten().collect();
    assert_eq!(json!(calls), *whole["message"].get("tool_calls").unwrap_or(&json!([])));
    whole
}

#[tokio::test]
async fn chats_have_text_thoughts_and_whole_calls() {
    let server = scripted(Some(ToolCallFormat::Hermes), Some(ReasoningFormat::Think)).await;
    for (mut client, _front) in server.directly_and_through_a_gateway().await {
        let plain = answer(&mut client, "/api/chat", &asking("Good day", json!({}))).await;
        assert_eq!(plain["message"], json!({"role": "assistant", "content": "Good day"}));
        assert_eq!((&plain["done_reason"], &plain["eval_count"]), (&json!("stop"), &json!(9)));
        let thought =
            answer(&mut client, "/api/chat", &asking("<think>hm</think>Yes", json!({"think": true}))).await;
        assert_eq!(thought["message"], json!({"role": "assistant", "content": "Yes", "thinking": "hm"}));
        let hidden =
            answer(&mut client, "/api/chat", &asking("<think>hm</think>Yes", json!({"think": false}))).await;
        assert_eq!(hidden["message"], json!({"role": "assistant", "content": "Yes"}));
        let called = answer(&mut client, "/api/chat", &asking(TWO, json!({"tools": tools()}))).await;
        let call = |name: &str, arguments: Value| json!({"function": {"name": name, "arguments": arguments}});
        let calls = json!([call("get_weather", json!({"city": "São Paulo"})), call("now", json!({}))]);
        assert_eq!(called["message"]["tool_calls"], calls);
        // What was said goes back with the results, which name their tools or come in order.
        let history = json!([
            {"role": "user", "content": "Hi"}, called["message"],
            {"role": "tool", "content": "noon", "tool_name": "now"}, {"role": "tool", "content": "rain"},
            {"role": "user", "content": "{{Thanks}}"},
        ]);
        let last =
            answer(&mut client, "/api/chat", &asking("", json!({"messages": history, "tools": tools()})))
                .await;
        assert_eq!(last["message"]["content"], "Thanks");
        let options = json!({"options": {"num_predict": 3, "num_ctx": 4096, "stop": ["x"]}});
        let cut = answer(&mut client, "/api/chat", &asking("one two", options)).await;
        assert_eq!((&cut["message"]["content"], &cut["done_reason"]), (&json!("one"), &json!("length")));
        let more_than_fit = json!({"options": {"num_predict": 1_000_000}});
        let whole = answer(&mut client, "/api/chat", &asking("one two", more_than_fit)).await;
        assert_eq!(
            (&whole["message"]["content"], &whole["done_reason"]),
            (&json!("one two"), &json!("stop"))
        );
    }
}

#[tokio::test]
async fn generate_answers_a_prompt_with_and_without_the_template() {
    let server = scripted(None, None).await;
    for (mut client, _front) in server.directly_and_through_a_gateway().await {
        for raw in [false, true] {
            let body = json!({"model": "paper", "prompt": "{{Good day}}", "system": "Be brief.", "raw": raw});
            let said = answer(&mut client, "/api/generate", &body).await;
            assert_eq!(said["response"], "Good day", "{raw}");
        }
    }
}

#[tokio::test]
async fn errors_and_lists_have_the_form_of_the_api() {
    let server = scripted(Some(ToolCallFormat::Hermes), None).await;
    let front = Front::of(&server).await;
    let mut client = server.connect().await;
    for (body, status, word) in [
        (asking("a", json!({"model": "absent"})), 404, "absent"),
        (json!({"model": "paper", "messages": "a"}), 400, "messages"),
        (asking("a", json!({"keep_alive": "soon"})), 400, "keep_alive"),
        (
            asking("a", json!({"messages": [{"role": "user", "content": "a", "images": ["aGk="]}]})),
            400,
            "image",
        ),
        (asking("a", json!({"options": {"temperature": -1}})), 400, "options.temperature"),
    ] {
        for client in [&mut client, &mut front.connect().await] {
            let reply = client.post("/api/chat", &body).await;
            let error = reply.json();
            assert_eq!(reply.status, status, "{error}");
            assert!(error["error"].as_str().is_some_and(|message| message.contains(word)), "{error}");
        }
    }
    for path in ["/api/tags", "/api/ps"] {
        assert_eq!(client.get(path).await.json()["models"][0]["model"], "paper", "{path}");
    }
    let shown = client.post("/api/show", &json!({"model": "paper"})).await.json();
    assert_eq!(shown["capabilities"], json!(["completion", "tools"]));
    assert!(client.get("/api/version").await.json()["version"].is_string());
}

#[tokio::test]
async fn requests_without_a_prompt_are_about_their_model() {
    let server = scripted(None, None).await;
    let mut client = server.connect().await;
    for (path, stay, reason) in [("/api/chat", json!("5m"), "load"), ("/api/generate", json!(0), "unload")] {
        let body = json!({"model": "paper", "keep_alive": stay});
        let told = client.post(path, &body).await.json();
        assert_eq!((&told["done"], &told["done_reason"]), (&json!(true), &json!(reason)), "{told}");
    }
    let unknown = client.post("/api/generate", &json!({"model": "absent"})).await;
    assert_eq!(unknown.status, 404);
}

#[tokio::test]
async fn what_changes_models_is_refused_in_the_form_of_the_api() {
    let server = scripted(None, None).await;
    let mut client = server.connect().await;
    for (path, status, word) in [
        ("/api/pull", 403, "--max-pulled-bytes"),
        ("/api/delete", 400, "throng rm"),
        ("/api/copy", 400, "--served-model-name"),
        ("/api/create", 400, "makes"),
        ("/api/push", 400, "publishes"),
    ] {
        let reply = client.post(path, &json!({"model": "org/name"})).await;
        let error = reply.json();
        assert_eq!(reply.status, status, "{path}");
        assert!(error["error"].as_str().is_some_and(|message| message.contains(word)), "{error}");
    }
}

#[tokio::test]
async fn a_model_without_its_tokens_fills_nothing() {
    let server = scripted(None, None).await;
    let mut client = server.connect().await;
    let gap = json!({"input_prefix": "a", "input_suffix": "b"});
    let reply = client.post("/infill", &gap).await;
    let error = reply.json()["error"].clone();
    assert_eq!((reply.status, &error["code"], &error["param"]), (400, &json!(400), &json!("input_prefix")));
    assert_eq!(error["reason"], "unsupported_parameter");
    let body = json!({"model": "paper", "prompt": "a", "suffix": "b"});
    let error = client.post("/v1/completions", &body).await.json()["error"].clone();
    assert_eq!((&error["code"], &error["param"]), (&json!("unsupported_parameter"), &json!("suffix")));
}

#[tokio::test]
async fn answers_tell_where_their_time_went_in_the_place_of_their_api() {
    let server = scripted(None, None).await;
    let mut client = server.connect().await;
    let body = asking("one two", json!({"include_timings": true, "max_tokens": 50}));
    let chat = client.post("/v1/chat/completions", &body).await.json();
    let message = client.post("/v1/messages", &body).await.json();
    for timings in [&chat["timings"], &message["usage"]["timings"]] {
        assert!(timings["queue_ms"].is_number() && timings["prompt_ms"].is_number(), "{chat} {message}");
        assert!(timings["predicted_n"].as_u64().is_some_and(|n| n > 0), "{timings}");
    }
    let silent = client.post("/v1/chat/completions", &asking("one two", json!({}))).await.json();
    assert_eq!(silent.get("timings"), None);
    let mut body = body;
    body["stream"] = json!(true);
    let answer = client.post("/v1/chat/completions", &body).await;
    let stream = answer.text();
    let last = stream.lines().rfind(|line| line.contains("\"timings\"")).expect("a chunk");
    assert!(last.contains("\"choices\":[]") && stream.trim_end().ends_with("[DONE]"), "{last}");
    let answer = client.post("/v1/messages", &body).await;
    let end = answer
        .text()
        .lines()
        .find(|line| line.contains("message_delta") && line.starts_with("data"))
        .expect("an end");
    assert!(end.contains("\"timings\":{"), "{end}");
}
