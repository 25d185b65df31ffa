//! Tools that the gateway calls in a response: HTTP endpoints on this machine. The model says what the last
//! text between `{{` and `}}` of its prompt is, so the result of a tool says what it does next.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::get;
use serde_json::{Value, json};
use throng_gateway::GatewayConfig;
use throng_text::ToolCallFormat;

use super::responses::{asking, events, kinds, without_ids};
use crate::api::tool_calls::scripted_with;
use crate::harness::Server;

/// What the endpoints have seen.
#[derive(Default)]
pub(super) struct Seen {
    pub asked: Mutex<Vec<String>>,
    n_waiting: AtomicU32,
}

/// Counts a request down when it is answered or dropped.
struct Waiting(Arc<Seen>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.n_waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(super) fn call(name: &str, arguments: Value) -> String {
    format!("<tool_call>{}</tool_call>", json!({"name": format!("shop__{name}"), "arguments": arguments}))
}

/// Endpoints, and a server that has them as tools.
pub(super) async fn start(change: impl FnOnce(&mut GatewayConfig)) -> (Server, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let order = async |State(seen): State<Arc<Seen>>, Path(id): Path<String>| {
        seen.asked.lock().expect("no panic").push(id.clone());
        match id.as_str() {
            "first" => format!("{{{{Look further. {}}}}}", call("order", json!({"id": "last"}))),
            "again" => format!("{{{{{}}}}}", call("order", json!({"id": "again"}))),
            _ => "{{It is on its way.}}".to_owned(),
        }
    };
    let wait = async |State(seen): State<Arc<Seen>>| {
        seen.n_waiting.fetch_add(1, Ordering::SeqCst);
        let _waiting = Waiting(seen.clone());
        std::future::pending::<()>().await;
    };
    let router = Router::new().route("/orders/{id}", get(order)).route("/wait", get(wait));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let origin = format!("http://{}", listener.local_addr().expect("an address"));
    let service = router.with_state(seen.clone());
    tokio::spawn(async move { axum::serve(listener, service).await });
    let tool = |name: &str, path: &str| json!({"server": "shop", "name": name, "description": "d", "method": "GET", "url": format!("{origin}{path}")});
    let mut config = GatewayConfig::default();
    config.tools.http = vec![
        serde_json::from_value(tool("order", "/orders/{id}")).expect("a tool"),
        serde_json::from_value(tool("wait", "/wait")).expect("a tool"),
    ];
    change(&mut config);
    (scripted_with(config, Some(ToolCallFormat::Hermes), None).await, seen)
}

pub(super) fn shop() -> Value {
    json!([{"type": "mcp", "server_label": "shop"}])
}

#[tokio::test]
async fn tokens_are_counted_with_the_tools_of_servers_and_nothing_is_called() {
    let (server, seen) = start(|_| {}).await;
    let mut client = server.connect().await;
    let body = asking("Good day", json!({"tools": shop()}));
    let counted = client.post("/v1/responses/input_tokens", &body).await.json();
    let told = client.post("/v1/responses", &body).await.json();
    assert_eq!(kinds(&told), ["mcp_list_tools", "message"], "one turn");
    assert_eq!(counted["input_tokens"], told["usage"]["input_tokens"]);
    let unknown = json!({"tools": [{"type": "mcp", "server_label": "nowhere"}]});
    let refused = client.post("/v1/responses/input_tokens", &asking("Good day", unknown)).await;
    assert_eq!((refused.status, refused.error().3.as_str()), (400, "invalid_value"));
    assert!(seen.asked.lock().expect("no panic").is_empty());
}

#[tokio::test]
async fn a_response_has_several_turns_whole_and_streamed() {
    let (server, seen) = start(|_| {}).await;
    let mut client = server.connect().await;
    let body =
        asking(&format!("I look. {}", call("order", json!({"id": "first"}))), json!({"tools": shop()}));
    let whole = client.post("/v1/responses", &body).await.json();
    let expected = ["mcp_list_tools", "message", "mcp_call", "message", "mcp_call", "message"];
    assert_eq!(kinds(&whole), expected, "{whole}");
    assert_eq!(whole["output"][4]["output"], "{{It is on its way.}}");
    assert_eq!(whole["output"][5]["content"][0]["text"], "It is on its way.");
    assert_eq!((&whole["status"], &whole["error"]), (&json!("completed"), &Value::Null));
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let reply = client.post("/v1/responses", &streamed).await;
    let events = events(reply.text());
    let last = &events.last().expect("an end")["response"];
    assert_eq!(without_ids(last.clone()), without_ids(whole.clone()));
    for key in ["input_tokens", "output_tokens"] {
        assert_eq!(last["usage"][key], whole["usage"][key]);
    }
    let cached = whole["usage"]["input_tokens_details"]["cached_tokens"].as_u64().expect("a number");
    assert!(cached > 200, "the prompt of a turn begins as that of the turn before: {}", whole["usage"]);
    let done = events.iter().filter(|event| event["type"] == "response.output_item.done");
    let done: Vec<&Value> = done.map(|event| &event["item"]).collect();
    assert_eq!(json!(done), last["output"], "each item is done once, as the response has it");
    let names: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    let place = |name: &str| names.iter().position(|other| *other == name).expect(name);
    assert!(place("response.mcp_list_tools.completed") < place("response.mcp_call.in_progress"));
    assert!(place("response.mcp_call_arguments.done") < place("response.mcp_call.completed"));
    assert_eq!(*seen.asked.lock().expect("no panic"), ["first", "last", "first", "last"]);
    let text = |idx: usize| whole["output"][idx]["content"][0]["text"].as_str().map_or(0, str::len) as u64;
    let n_output = whole["usage"]["output_tokens"].as_u64().expect("a number");
    assert!(n_output > text(1) + text(3) + text(5) + 3, "of all turns: {}", whole["usage"]);
    let metrics = client.get("/metrics").await;
    let counted = r#"throng_tool_calls_total{server="shop",tool="order",outcome="ok"} 4"#;
    assert!(metrics.text().contains(counted), "{}", metrics.text());
    server.idle().await;
}

#[tokio::test]
async fn a_model_that_calls_for_ever_is_stopped() {
    let (server, seen) = start(|config| config.tools.max_calls = 3).await;
    let mut client = server.connect().await;
    let body = asking(&call("order", json!({"id": "again"})), json!({"tools": shop()}));
    let response = client.post("/v1/responses", &body).await.json();
    assert_eq!(seen.asked.lock().expect("no panic").len(), 3, "{response}");
    assert_eq!(response["status"], "completed");
    let fewer = asking(&call("order", json!({"id": "again"})), json!({"tools": shop(), "max_tool_calls": 1}));
    client.post("/v1/responses", &fewer).await;
    assert_eq!(seen.asked.lock().expect("no panic").len(), 4);
    assert_eq!(response["tools"][0]["require_approval"], Value::Null, "the operator's setting decides");
    let short =
        asking(&call("order", json!({"id": "again"})), json!({"tools": shop(), "max_output_tokens": 100}));
    let response = client.post("/v1/responses", &short).await.json();
    assert_eq!(response["incomplete_details"]["reason"], "max_output_tokens", "{response}");
    assert!(response["usage"]["output_tokens"].as_u64().expect("a number") <= 100, "{}", response["usage"]);
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_tools() {
    let (server, seen) = start(|_| {}).await;
    let body = asking(&call("wait", json!({})), json!({"tools": shop(), "stream": true}));
    let mut client = server.connect().await;
    let request = crate::harness::post_bytes("/v1/responses", &body.to_string(), &[]);
    client.send(request).await;
    client.read_until("response.mcp_call_arguments.done").await;
    until(|| seen.n_waiting.load(Ordering::SeqCst) == 1).await;
    drop(client);
    until(|| seen.n_waiting.load(Ordering::SeqCst) == 0).await;
}

/// Waits until something holds.
async fn until(holds: impl Fn() -> bool) {
    for _ in 0..2_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never came about");
}

#[tokio::test]
async fn approvals_and_choices_are_the_clients() {
    let (server, seen) = start(|config| config.tools.http[0].require_approval = true).await;
    let mut client = server.connect().await;
    let body = asking(&call("order", json!({"id": "last"})), json!({"tools": shop()}));
    let first = client.post("/v1/responses", &body).await.json();
    assert_eq!(kinds(&first), ["mcp_list_tools", "mcp_approval_request"], "{first}");
    assert!(seen.asked.lock().expect("no panic").is_empty());
    let asked = &first["output"][1];
    let mut input = vec![json!({"role": "user", "content": "Hi"})];
    input.extend(first["output"].as_array().expect("items").iter().cloned());
    input.push(json!({"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": true}));
    let again = asking("", json!({"input": input, "tools": shop()}));
    let second = client.post("/v1/responses", &again).await.json();
    assert_eq!(kinds(&second), ["mcp_call", "message"], "{second}");
    assert_eq!(second["output"][0]["approval_request_id"], asked["id"]);
    assert_eq!(*seen.asked.lock().expect("no panic"), ["last"]);
    for (fields, param) in [
        (json!({"tools": [{"type": "mcp", "server_label": "store"}]}), "tools[0].server_label"),
        (
            json!({"tools": [{"type": "mcp", "server_label": "shop", "server_url": "http://10.0.0.1/"}]}),
            "tools[0].server_url",
        ),
        (json!({"tools": [{"type": "mcp"}]}), "tools[0].server_label"),
        (
            json!({"tools": shop(), "tool_choice": {"type": "mcp", "server_label": "shop", "name": "absent"}}),
            "tool_choice",
        ),
        (json!({"tools": [{"type": "function", "name": "shop__order"}, shop()[0]]}), "tools"),
    ] {
        let reply = client.post("/v1/responses", &asking("a", fields.clone())).await;
        let error = reply.json()["error"].clone();
        assert_eq!((reply.status, &error["param"]), (400, &json!(param)), "{fields}: {error}");
    }
}

#[tokio::test]
async fn no_approved_call_runs_for_a_request_that_is_refused() {
    let (server, seen) = start(|config| config.tools.http[0].require_approval = true).await;
    let mut client = server.connect().await;
    let call = json!({"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "shop", "name": "order",
                      "arguments": "{\"id\":\"last\"}"});
    let input = json!([{"role": "user", "content": "Hi"}, call,
                       {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": true}]);
    let absent = json!({"type": "mcp", "server_label": "shop", "name": "absent"});
    for (fields, status) in [(json!({"model": "absent"}), 404), (json!({"tool_choice": absent}), 400)] {
        let mut body = asking("", json!({"input": input, "tools": shop()}));
        body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        let reply = client.post("/v1/responses", &body).await;
        assert_eq!(reply.status, status, "{}", reply.text());
    }
    assert!(seen.asked.lock().expect("no panic").is_empty());
    let body = asking("", json!({"input": input, "tools": shop()}));
    assert_eq!(client.post("/v1/responses", &body).await.status, 200);
    assert_eq!(seen.asked.lock().expect("no panic").len(), 1);
}

#[tokio::test]
async fn calls_of_a_turn_that_is_cut_do_not_run_and_are_incomplete() {
    let (server, seen) = start(|_| {}).await;
    let first = call("order", json!({"id": "first"}));
    let fields = json!({"tools": shop(), "max_output_tokens": first.len() + 60});
    let body = asking(&format!("{first}{}", call("order", json!({"id": "last"}))), fields);
    let mut client = server.connect().await;
    let whole = client.post("/v1/responses", &body).await.json();
    assert_eq!(kinds(&whole), ["mcp_list_tools", "mcp_call", "mcp_call"], "{whole}");
    let statuses = [&whole["output"][1]["status"], &whole["output"][2]["status"]];
    assert_eq!(statuses, ["incomplete", "incomplete"]);
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let reply = client.post("/v1/responses", &streamed).await;
    let events = events(reply.text());
    let last = &events.last().expect("an end")["response"];
    assert_eq!(without_ids(last.clone()), without_ids(whole));
    let done = events.iter().filter(|event| event["type"] == "response.output_item.done");
    let mut done: Vec<Value> = done.map(|event| event["item"].clone()).collect();
    done.sort_by_key(|item| item["id"].as_str().and_then(|id| id.split('_').nth(1)).map(str::to_owned));
    assert_eq!(json!(done), last["output"], "each item is done once");
    assert!(seen.asked.lock().expect("no panic").is_empty());
}

#[tokio::test]
async fn a_server_that_does_not_list_fails_the_response_and_a_stream_names_it() {
    let gone = throng_tools::ServerConfig {
        name: "gone".to_owned(),
        url: Some("http://127.0.0.1:9/mcp".to_owned()),
        ..Default::default()
    };
    let folder = tempfile::tempdir().expect("a folder");
    let (server, _) = start(|config| {
        config.tools.server = vec![gone];
        config.tools.pins = Some(folder.path().join("pins.json"));
    })
    .await;
    let mut client = server.connect().await;
    let tools = json!([shop()[0], {"type": "mcp", "server_label": "gone"}]);
    let mut body = asking("Hello", json!({"tools": tools}));
    let reply = client.post("/v1/responses", &body).await;
    let error = reply.json()["error"].clone();
    let told = (reply.status, &error["code"], &error["param"]);
    assert_eq!(told, (424, &json!("tool_server_unavailable"), &json!("tools[1].server_label")));
    body["stream"] = json!(true);
    let reply = client.post("/v1/responses", &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    // The stream ends with the failure, without the mark of a complete one.
    let events = events(&format!("{}data: [DONE]", reply.text()));
    let names: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    let item = |end| ["output_item.added", "mcp_list_tools.in_progress", end, "output_item.done"];
    let named =
        [&["created", "in_progress"][..], &item("mcp_list_tools.completed"), &item("mcp_list_tools.failed")];
    let mut expected: Vec<String> = named.concat().iter().map(|name| format!("response.{name}")).collect();
    expected.extend(["error".to_owned(), "response.failed".to_owned()]);
    assert_eq!(names, expected);
    let response = &events.last().expect("an end")["response"];
    assert_eq!(kinds(response), ["mcp_list_tools", "mcp_list_tools"]);
    assert_eq!(response["error"]["code"], "server_error");
    let reason = response["output"][1]["error"].as_str().expect("a reason");
    assert!(reason.contains("the tool server 'gone' cannot be used"), "{reason}");
}
