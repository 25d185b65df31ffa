//! Tools that the gateway calls, over a WebSocket connection: the same turns as in a stream, and
//! conversations in the memory of the connection.

use serde_json::{Value, json};

use super::responses::{asking, events, kinds, without_ids};
use super::served_tools::{call, shop, start};
use crate::harness::{Server, Socket};

async fn socket(server: &Server) -> Socket {
    Socket::open(server.address, &[]).await.expect("accepted")
}

/// A message that asks for a response whose model says `answer`.
fn message(answer: &str, fields: Value) -> Value {
    let mut message = asking(answer, fields);
    message["type"] = json!("response.create");
    message
}

fn types(events: &[Value]) -> Vec<&Value> {
    events.iter().map(|event| &event["type"]).collect()
}

#[tokio::test]
async fn a_message_has_the_turns_and_events_of_a_stream() {
    let (server, seen) = start(|_| {}).await;
    let answer = format!("I look. {}", call("order", json!({"id": "first"})));
    let body = asking(&answer, json!({"tools": shop(), "stream": true}));
    let reply = server.connect().await.post("/v1/responses", &body).await;
    let streamed = events(reply.text());
    let mut socket = socket(&server).await;
    socket.send(&message(&answer, json!({"tools": shop()}))).await;
    let told = socket.events().await;
    assert_eq!(types(&told), types(&streamed));
    let last = |events: &[Value]| without_ids(events.last().expect("an end")["response"].clone());
    assert_eq!(last(&told), last(&streamed));
    assert_eq!(*seen.asked.lock().expect("no panic"), ["first", "last", "first", "last"]);
    server.idle().await;
}

#[tokio::test]
async fn a_connection_remembers_lists_and_calls_that_wait() {
    let (server, seen) = start(|config| config.tools.http[0].require_approval = true).await;
    let mut socket = socket(&server).await;
    let first = message(&call("order", json!({"id": "last"})), json!({"tools": shop()}));
    let first = socket.ask(&first).await["response"].clone();
    assert_eq!(kinds(&first), ["mcp_list_tools", "mcp_approval_request"], "{first}");
    assert!(seen.asked.lock().expect("no panic").is_empty());
    let decision = json!({"type": "mcp_approval_response", "approval_request_id": first["output"][1]["id"],
                          "approve": true});
    let goes_on = json!({"tools": shop(), "previous_response_id": first["id"], "input": [decision]});
    let second = socket.ask(&message("", goes_on)).await["response"].clone();
    assert_eq!(kinds(&second), ["mcp_call", "message"], "{second}");
    assert_eq!(*seen.asked.lock().expect("no panic"), ["last"]);
}

#[tokio::test]
async fn a_tool_that_may_not_be_used_fails_its_message_alone() {
    let (server, _) = start(|_| {}).await;
    let mut socket = socket(&server).await;
    let absent = message("a", json!({"tools": [{"type": "mcp", "server_label": "store"}]}));
    let error = socket.ask(&absent).await;
    assert_eq!((&error["status"], &error["error"]["param"]), (&json!(400), &json!("tools[0].server_label")));
    let good = socket.ask(&message("Good day.", json!({"tools": shop()}))).await;
    assert_eq!(good["type"], "response.completed", "{good}");
}
