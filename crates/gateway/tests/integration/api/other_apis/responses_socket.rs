//! WebSocket mode of OpenAI's Responses: the same events as streams, turns in the memory of the connection,
//! lanes, errors, and how connections end.

use std::time::Duration;

use crate::api::tool_calls::scripted;
use crate::harness::{Server, Setup, Socket, Stored};
use serde_json::{Value, json};

/// A message that asks for `text`.
fn asking(text: &str, fields: Value) -> Value {
    let mut message = json!({
        "type": "response.create", "model": "paper", "max_output_tokens": 20, "temperature": 0, "input": text,
    });
    message.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    message
}

async fn socket(server: &Server) -> Socket {
    Socket::open(server.address, &[]).await.expect("accepted")
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().expect("a type")).collect()
}

/// The same without what differs from response to response.
fn without_ids(mut event: Value) -> Value {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(members) => {
                for key in ["id", "item_id", "created_at", "completed_at", "call_id", "input_tokens_details"]
                {
                    members.remove(key);
                }
                members.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    strip(&mut event);
    event
}

#[tokio::test]
async fn a_message_is_answered_by_the_events_of_a_stream() {
    let server = scripted(None, None).await;
    let message = asking("{{Good day}}", json!({"max_output_tokens": 900}));
    let mut socket = socket(&server).await;
    socket.send(&message).await;
    let events = socket.events().await;
    let mut body = message.clone();
    body["stream"] = json!(true);
    body.as_object_mut().expect("an object").remove("type");
    let reply = server.connect().await.post("/v1/responses", &body).await;
    let streamed = reply.text().split("\n\n").filter_map(|frame| frame.split_once("\ndata: "));
    let streamed: Vec<Value> =
        streamed.map(|(_, data)| without_ids(serde_json::from_str(data).expect("JSON"))).collect();
    let told: Vec<Value> = events.iter().cloned().map(without_ids).collect();
    assert_eq!(told, streamed);
    assert_eq!(events.last().expect("an end")["response"]["output"][0]["content"][0]["text"], "Good day");
}

#[tokio::test]
async fn turns_go_on_in_the_memory_of_the_connection() {
    let server = Server::start(Setup::default()).await;
    let mut socket = socket(&server).await;
    let first = socket.ask(&asking("Hello", json!({"instructions": "Be brief."}))).await["response"].clone();
    assert_eq!((&first["status"], &first["store"]), (&json!("incomplete"), &json!(false)));
    let goes_on = |id: &Value, text: &str| asking(text, json!({"previous_response_id": id}));
    let second = socket.ask(&goes_on(&first["id"], "More")).await["response"].clone();

    // The same turn with its whole history.
    let said = |role: &str, text: &Value| json!({"role": role, "content": text});
    let answer = &first["output"][0]["content"][0]["text"];
    let whole =
        json!([said("user", &json!("Hello")), said("assistant", answer), said("user", &json!("More"))]);
    let expected =
        socket.ask(&asking("", json!({"input": whole, "stream_id": "other"}))).await["response"].clone();
    assert_eq!(second["output"][0]["content"], expected["output"][0]["content"]);
    assert_eq!(second["usage"]["input_tokens"], expected["usage"]["input_tokens"]);
    assert_eq!(second["previous_response_id"], first["id"]);

    // Only the last response of a lane is remembered, and by this connection only.
    let lost = socket.ask(&goes_on(&first["id"], "Again")).await;
    assert_eq!(
        (&lost["status"], &lost["error"]["code"]),
        (&json!(400), &json!("previous_response_not_found"))
    );
    assert_eq!(lost["error"]["param"], "previous_response_id");
    let mut elsewhere = Socket::open(server.address, &[]).await.expect("accepted");
    let lost = elsewhere.ask(&goes_on(&second["id"], "Again")).await;
    assert_eq!(lost["error"]["code"], "previous_response_not_found");

    // A fork goes on from another lane's response; a turn that fails loses the response of its own lane.
    let bad = asking("x", json!({"previous_response_id": second["id"], "temperature": 9}));
    let mut fork = bad.clone();
    fork["stream_id"] = json!("fork");
    assert_eq!(socket.ask(&fork).await["status"], 400);
    fork["temperature"] = json!(0);
    let forked = socket.ask(&fork).await;
    assert_eq!((&forked["type"], &forked["stream_id"]), (&json!("response.incomplete"), &json!("fork")));
    assert_eq!(socket.ask(&bad).await["status"], 400);
    let lost = socket.ask(&goes_on(&second["id"], "Again")).await;
    assert_eq!(lost["error"]["code"], "previous_response_not_found");
}

#[tokio::test]
async fn an_input_can_be_prepared_before_its_turn() {
    let server = Server::start(Setup::default()).await;
    let mut socket = socket(&server).await;
    let long = "word ".repeat(200);
    socket.send(&asking(&long, json!({"generate": false}))).await;
    let events = socket.events().await;
    assert_eq!(kinds(&events), ["response.created", "response.in_progress", "response.completed"]);
    let prepared = &events[2]["response"];
    assert_eq!(prepared["output"], json!([]));
    let turn = asking("Go on", json!({"previous_response_id": prepared["id"]}));
    let turn = socket.ask(&turn).await["response"].clone();
    let (usage, cached) = (&turn["usage"], &turn["usage"]["input_tokens_details"]["cached_tokens"]);
    assert!(cached.as_u64() > Some(900), "{usage}");
    assert_eq!(turn["output"][0]["type"], "message");
}

#[tokio::test]
async fn lanes_run_beside_each_other_and_each_in_order() {
    let server = Server::start(Setup { step_time: Duration::from_millis(5), ..Setup::default() }).await;
    let mut socket = socket(&server).await;
    let long = |lane: &str| asking("Hello", json!({"stream_id": lane, "max_output_tokens": 60}));
    for lane in ["a", "b", "a"] {
        socket.send(&long(lane)).await;
    }
    let (mut seen, mut n_ended) = (Vec::new(), 0);
    while n_ended < 3 {
        let event = socket.next().await.expect("an event");
        let kind = event["type"].as_str().expect("a type");
        let lane = event["stream_id"].as_str().expect("a lane").to_owned();
        if kind == "response.created" || kind == "response.incomplete" {
            seen.push((lane, kind == "response.created"));
        }
        n_ended += u32::from(kind == "response.incomplete");
    }
    let of = |wanted: &str| -> Vec<bool> {
        seen.iter().filter(|(lane, _)| lane == wanted).map(|(_, begins)| *begins).collect()
    };
    assert_eq!(of("a"), [true, false, true, false]);
    assert_eq!(of("b"), [true, false]);
    assert!(seen[0].1 && seen[1].1 && seen[0].0 != seen[1].0, "both lanes begin at once: {seen:?}");
}

#[tokio::test]
async fn bad_messages_are_told_and_the_connection_stays() {
    let server = Server::start(Setup::default()).await;
    let mut socket = socket(&server).await;
    for (message, status, code, param) in [
        (json!([]), 400, "invalid_type", Value::Null),
        (json!({"type": "response.cancel"}), 400, "invalid_value", json!("type")),
        (asking("x", json!({"stream_id": "a b"})), 400, "invalid_stream_id", json!("stream_id")),
        (asking("x", json!({"model": "none"})), 404, "model_not_found", json!("model")),
        (asking("x", json!({"background": true})), 400, "unsupported_parameter", json!("background")),
        (asking("x", json!({"store": true})), 400, "unsupported_parameter", json!("store")),
        (asking("x", json!({"temperature": "hot"})), 400, "invalid_type", json!("temperature")),
    ] {
        let told = socket.ask(&message).await;
        assert_eq!((&told["type"], &told["status"]), (&json!("error"), &json!(status)), "{message}: {told}");
        assert_eq!((&told["error"]["code"], &told["error"]["param"]), (&json!(code), &param), "{told}");
        assert!(told["error"]["message"].is_string() && told["error"]["type"].is_string(), "{told}");
    }
    for _ in 0..17 {
        assert_eq!(socket.ask(&json!({})).await["error"]["code"], "missing_required_parameter");
    }
    assert_eq!(socket.next().await, Err(1008), "too many of them at once");
    let mut socket = self::socket(&server).await;
    let lane = socket.ask(&asking("x", json!({"stream_id": "a", "temperature": 9}))).await;
    assert_eq!(lane["stream_id"], "a");
    assert_eq!(socket.ask(&asking("x", json!({"stream": true}))).await["type"], "response.incomplete");
}

#[tokio::test]
async fn other_requests_than_for_a_connection_are_refused() {
    let server = Server::start(Setup::default()).await;
    let mut client = server.connect().await;
    let reply = client.get("/v1/responses").await;
    assert_eq!((reply.status, reply.header("allow")), (405, Some("POST")));
    let upgrade = "host: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n";
    let version = "sec-websocket-version: 12\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";
    for (path, fields, status, code) in [
        ("/v1/responses", version, 426, "unsupported_websocket_version"),
        ("/v1/responses", "sec-websocket-version: 13\r\n", 400, "bad_websocket_handshake"),
        (
            "/v1/responses",
            "sec-websocket-version: 13\r\nsec-websocket-key: x\r\n",
            400,
            "bad_websocket_handshake",
        ),
        ("/v1/none", version, 404, "unknown_url"),
    ] {
        let mut client = server.connect().await;
        client.send(format!("GET {path} HTTP/1.1\r\n{upgrade}{fields}\r\n")).await;
        let reply = client.reply().await.expect("an answer");
        assert_eq!((reply.status, reply.json()["error"]["code"].as_str()), (status, Some(code)));
        assert_eq!(reply.header("connection"), Some("close"));
        assert!(client.is_closed().await);
    }
    // A request with a body opens no connection.
    for body in ["content-length: 2\r\n\r\n{}", "transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"] {
        let mut client = server.connect().await;
        let head = version.replace("12", "13");
        client.send(format!("GET /v1/responses HTTP/1.1\r\n{upgrade}{head}{body}")).await;
        let (status, _, _, code) = client.reply().await.expect("an answer").error();
        assert_eq!((status, &*code), (400, "unsupported_upgrade"), "{body}");
    }
    // Elsewhere the wish is ignored, and the connection closes: what would follow is unclear.
    let mut client = server.connect().await;
    client.send(format!("GET /version HTTP/1.1\r\n{upgrade}\r\nGET /version HTTP/1.1\r\n\r\n")).await;
    assert_eq!(client.reply().await.expect("an answer").status, 200);
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn a_dropped_connection_ends_its_responses() {
    let server = Server::start(Setup { step_time: Duration::from_millis(2), ..Setup::default() }).await;
    let mut socket = socket(&server).await;
    for lane in ["a", "b"] {
        socket.send(&asking("Hello", json!({"stream_id": lane, "max_output_tokens": 3000}))).await;
    }
    server.has_made(20).await;
    drop(socket);
    server.idle().await;
    assert!(server.engine.stats().scheduler.counters.output_tokens < 5000);
}

#[tokio::test]
async fn a_server_that_ends_tells_the_running_response_and_closes() {
    let mut server = Server::start(Setup { step_time: Duration::from_millis(5), ..Setup::default() }).await;
    let (mut running, mut idle) = (socket(&server).await, socket(&server).await);
    assert_eq!(idle.ask(&asking("Hello", json!({}))).await["type"], "response.incomplete");
    running.send(&asking("Hello", json!({"max_output_tokens": 200}))).await;
    running.send(&asking("Hello", json!({"stream_id": "a"}))).await;
    running.send(&asking("Hello", json!({"stream_id": "a"}))).await;
    assert_eq!(running.next().await.expect("an event")["type"], "response.created");
    server.begin_stop();
    assert_eq!(idle.next().await, Err(1001));
    let mut ends = Vec::new();
    let code = loop {
        match running.next().await {
            Ok(event) if event["type"] == "error" => ends.push(event["status"].as_u64()),
            Ok(event)
                if ["completed", "incomplete"].iter().any(|end| event["response"]["status"] == *end) =>
            {
                ends.push(None);
            }
            Ok(_) => {}
            Err(code) => break code,
        }
    };
    assert_eq!(code, 1001);
    // A request that runs is answered to its end; one that waits is refused. Whether the second one of lane
    // "a" still waits at the stop depends on the machine.
    assert!(ends.iter().filter(|end| end.is_none()).count() >= 1, "{ends:?}");
    assert!(ends.len() == 3 && ends.iter().flatten().all(|status| *status == 503), "{ends:?}");
    server.stopped().await;
}

#[tokio::test]
async fn responses_are_cut_with_their_connection_when_the_time_is_up() {
    let mut setup = Setup { step_time: Duration::from_millis(20), ..Setup::default() };
    setup.config.server.shutdown_timeout_s = 1;
    let mut server = Server::start(setup).await;
    let mut socket = socket(&server).await;
    socket.send(&asking("Hello", json!({"max_output_tokens": 3000}))).await;
    assert_eq!(socket.next().await.expect("an event")["type"], "response.created");
    server.begin_stop();
    let last = socket.events().await.pop().expect("an event");
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.failed"), &json!("failed")));
    assert_eq!(socket.next().await, Err(1001));
    server.stopped().await;
}

#[tokio::test]
async fn connections_end_by_age_and_without_use() {
    let mut setup = Setup::default();
    (setup.config.server.websocket_max_age_s, setup.config.server.websocket_idle_timeout_s) = (2, 3600);
    let server = Server::start(setup).await;
    let mut old = socket(&server).await;
    assert_eq!(old.ask(&asking("Hello", json!({}))).await["type"], "response.incomplete");
    let told = old.next().await.expect("an error");
    assert_eq!(told["error"]["code"], "websocket_connection_limit_reached");
    assert_eq!(old.next().await, Err(1001));

    let mut setup = Setup::default();
    setup.config.server.websocket_idle_timeout_s = 1;
    let server = Server::start(setup).await;
    assert_eq!(socket(&server).await.next().await, Err(1001));
}

/// A server with a database and a key.
async fn with_database() -> Stored {
    Stored::start(Setup::default(), &[("o", "p")]).await
}

async fn socket_with_key(place: &Stored) -> Socket {
    let authorization = format!("Bearer {}", place.keys[0].secret());
    Socket::open(place.server.address, &[("authorization", &authorization)]).await.expect("accepted")
}

#[tokio::test]
async fn kept_responses_go_on_from_any_connection() {
    let place = with_database().await;
    let mut socket = socket_with_key(&place).await;
    let first = socket.ask(&asking("Hello", json!({}))).await["response"].clone();
    assert_eq!(first["store"], true);
    let unkept = asking("More", json!({"previous_response_id": first["id"], "store": false}));
    let unkept = socket.ask(&unkept).await["response"].clone();
    let third = asking("Yet more", json!({"previous_response_id": unkept["id"]}));
    let third = socket.ask(&third).await["response"].clone();
    let mut elsewhere = socket_with_key(&place).await;
    let goes_on = |id: &Value| asking("Last", json!({"previous_response_id": id}));
    let lost = elsewhere.ask(&goes_on(&unkept["id"])).await;
    assert_eq!(lost["error"]["code"], "previous_response_not_found");
    // A kept one has all that came before it, kept by itself or not.
    let last = elsewhere.ask(&goes_on(&third["id"])).await["response"].clone();
    let here = socket.ask(&goes_on(&third["id"])).await["response"].clone();
    assert_eq!(last["output"][0]["content"], here["output"][0]["content"]);
    assert_eq!(last["usage"]["input_tokens"], here["usage"]["input_tokens"]);
}

#[tokio::test]
async fn a_revoked_key_ends_its_connections_once_the_running_response_is_told() {
    let place = with_database().await;
    assert_eq!(Socket::open(place.server.address, &[]).await.err(), Some(401));
    let refused = Socket::open(place.server.address, &[("authorization", "Bearer sk-none")]).await;
    assert_eq!(refused.err(), Some(401));
    let (mut idle, mut running) = (socket_with_key(&place).await, socket_with_key(&place).await);
    running.send(&asking("Hello", json!({"max_output_tokens": 900}))).await;
    assert_eq!(running.next().await.expect("an event")["type"], "response.created");
    place.store.revoke_key(&place.keys[0].key.id).await.expect("revoked");
    for (socket, is_running) in [(&mut idle, false), (&mut running, true)] {
        if is_running {
            assert_ne!(socket.events().await.pop().expect("an end")["type"], "error");
        }
        let told = socket.next().await.expect("an error");
        assert_eq!((&told["status"], &told["error"]["code"]), (&json!(401), &json!("api_key_revoked")));
        assert_eq!(socket.next().await, Err(1008));
    }
}

#[tokio::test]
async fn pages_of_other_origins_open_no_connection() {
    let server = Server::start(Setup::default()).await;
    let own = format!("http://{}", server.address);
    for (origin, status) in [("https://evil.example", Some(403)), ("null", Some(403)), (&*own, None)] {
        let opened = Socket::open(server.address, &[("origin", origin)]).await;
        assert_eq!(opened.err(), status, "{origin}");
    }
}
