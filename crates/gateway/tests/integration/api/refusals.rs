//! Invalid input over real sockets: the table of bodies, and heads, framing and hosts. After each refusal the
//! connection is either usable or closed.

use crate::bad_input::{Case, Expected};
use crate::harness::{Client, Reply, Server, Setup, byte_tokenizer, chat, post_bytes};
use serde_json::{Value, json};
use throng_gateway::{GatewayConfig, Secret};
use throng_text::{AnswerFormat, ToolCallFormat};
use tokio::io::AsyncWriteExt;

async fn good_request_succeeds(client: &mut Client, context: &str) {
    let reply = client.post("/v1/chat/completions", &chat(json!({"max_tokens": 2}))).await;
    assert_eq!(reply.status, 200, "after {context}: {}", reply.text());
}

#[tokio::test]
async fn every_body_of_the_table_gets_its_answer_and_the_connection_stays_usable() {
    let mut setup = Setup::default();
    setup.capacity.vocabulary_size = crate::bad_input::VOCABULARY_SIZE;
    setup.capacity.max_sequence_tokens = crate::bad_input::MAX_MODEL_LEN;
    setup.answer_format = AnswerFormat::new(Some(ToolCallFormat::Hermes), None, &byte_tokenizer());
    let server = Server::start(setup).await;
    let mut client = server.connect().await;
    let cases = crate::bad_input::cases();
    let streamed: Vec<Case> = cases.iter().filter_map(Case::streamed).collect();
    let mut faults = Vec::new();
    for case in cases.iter().chain(&streamed) {
        let fields: &[&str] = &[];
        let mut bytes = post_bytes(case.endpoint.path(), "", fields);
        let head = String::from_utf8(bytes)
            .expect("ascii")
            .replace("length: 0", &format!("length: {}", case.body.len()));
        bytes = [head.as_bytes(), &case.body].concat();
        client.send(bytes).await;
        let Some(reply) = client.reply().await else {
            faults.push(format!("{}\n  closed without an answer", case.shown()));
            client = server.connect().await;
            continue;
        };
        if let Some(fault) = fault(case, &reply) {
            faults.push(format!("{}\n  {fault}", case.shown()));
        }
        if reply.header("connection") == Some("close") {
            client = server.connect().await;
        }
        good_request_succeeds(&mut client, &case.shown()).await;
    }
    assert!(faults.is_empty(), "{} faults of {}\n{}", faults.len(), cases.len(), faults.join("\n"));
}

fn fault(case: &Case, reply: &Reply) -> Option<String> {
    let found = match reply.status {
        200 => {
            return (case.expected != Expected::Accepted)
                .then(|| format!("accepted, not {:?}", case.expected));
        }
        400 => {
            let error = &reply.json()["error"];
            let code = error["code"].as_str().unwrap_or_default().to_owned();
            (error["param"].as_str().map(str::to_owned), code, error["type"] == "invalid_request_error")
        }
        status => return Some(format!("status {status}: {}", reply.text())),
    };
    match &case.expected {
        Expected::Refused(param, code) if (param, *code, true) == (&found.0, found.1.as_str(), found.2) => {
            None
        }
        expected => Some(format!("expected {expected:?}, found {found:?}")),
    }
}

/// Sends bytes on a new connection and expects this refusal, and then either a usable connection or a closed
/// one.
async fn refused(server: &Server, bytes: impl AsRef<[u8]>, status: u16, code: &str) {
    let mut client = server.connect().await;
    client.send(bytes.as_ref()).await;
    let shown = String::from_utf8_lossy(&bytes.as_ref()[..bytes.as_ref().len().min(120)]).into_owned();
    let reply = client.reply().await.unwrap_or_else(|| panic!("no answer to {shown}"));
    let (found, error_type, param, found_code) = reply.error();
    assert_eq!((found, found_code.as_str(), &param), (status, code, &Value::Null), "{shown}");
    assert_eq!(error_type, if status < 500 { "invalid_request_error" } else { "server_error" });
    if reply.header("connection") == Some("close") {
        assert!(client.is_closed().await, "{shown}");
    } else {
        good_request_succeeds(&mut client, &shown).await;
    }
}

#[tokio::test]
async fn heads_that_are_wrong_are_refused() {
    let server = Server::start(Setup::default()).await;
    let get =
        |target: &str, fields: &str| format!("GET {target} HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n");
    let body = chat(json!({"max_tokens": 2})).to_string();
    for target in
        ["//metrics", "/v1/../health", "/%2e%2e/health", "/V1/models", "/nothing", "/health/", "/ui/x"]
    {
        refused(&server, get(target, ""), 404, "unknown_url").await;
    }
    refused(&server, get("/v1/chat/completions", ""), 405, "method_not_allowed").await;
    refused(&server, post_bytes("/health", "{}", &[]), 405, "method_not_allowed").await;
    refused(
        &server,
        post_bytes("/v1/chat/completions", &body, &["content-encoding: gzip"]),
        415,
        "unsupported_encoding",
    )
    .await;
    let form = String::from_utf8(post_bytes("/tokenize", "a=b", &[]))
        .expect("ascii")
        .replace("application/json", "text/plain");
    refused(&server, form, 415, "unsupported_media_type").await;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    refused(&server, format!("{head}content-length: 100000000\r\n\r\n{{"), 413, "request_too_large").await;
    let many: String = (0..120).map(|i| format!("x-{i}: 1\r\n")).collect();
    refused(&server, get("/health", &many), 431, "headers_too_large").await;
    refused(&server, get("/health", &format!("x: {}\r\n", "y".repeat(17 << 10))), 431, "headers_too_large")
        .await;
    refused(&server, get("/health", &format!("{}: 1\r\n", "y".repeat(60 << 10))), 431, "headers_too_large")
        .await;
    let wide: String = (0..9).map(|i| format!("x-{i}: {}\r\n", "y".repeat(8 << 10))).collect();
    refused(&server, get("/health", &wide), 431, "headers_too_large").await;
    refused(&server, get(&format!("/{}", "y".repeat(9 << 10)), ""), 414, "uri_too_long").await;
    refused(&server, get("/health", "upgrade: foo\r\nconnection: upgrade\r\n"), 400, "unsupported_upgrade")
        .await;
    refused(&server, "GET /health HTTP/1.1\r\n\r\n", 400, "bad_host").await;
    refused(&server, get("/health", "host: localhost\r\n"), 400, "bad_host").await;
    refused(&server, "GET /health HTTP/1.1\r\nhost: a b\r\n\r\n", 400, "bad_host").await;
    refused(&server, "GET /health HTTP/1.1\r\nhost: evil.example\r\n\r\n", 403, "forbidden_origin").await;
    refused(&server, get("/health", "origin: http://evil.example\r\n"), 403, "forbidden_origin").await;
    refused(&server, get("/health", "origin: null\r\n"), 403, "forbidden_origin").await;
    let mut client = server.connect().await;
    let reply = client.get("/v1/completions").await;
    assert_eq!(reply.header("allow"), Some("POST"));
}

#[tokio::test]
async fn faults_that_depend_on_the_model_are_refused() {
    let mut setup = Setup::default();
    setup.capacity.n_blocks = 16;
    let server = Server::start(setup).await;
    let mut client = server.connect().await;
    let say = |content: &str| json!({"messages": [{"role": "user", "content": content}]});
    let cases = [
        (say("refuse me"), 400, "messages", "template_error"),
        (say(&"x".repeat(5000)), 400, "messages", "context_length_exceeded"),
        (say(&"x".repeat(2000)), 400, "messages", "prompt_exceeds_capacity"),
        (json!({"max_tokens": 5000}), 400, "max_tokens", "context_length_exceeded"),
        (json!({"model": "other"}), 404, "model", "model_not_found"),
        (json!({"model": "../../etc/passwd"}), 400, "model", "invalid_value"),
    ];
    for (fields, status, param, code) in cases {
        for stream in [false, true] {
            let mut body = chat(fields.clone());
            body["stream"] = json!(stream);
            let (found, _, found_param, found_code) =
                client.post("/v1/chat/completions", &body).await.error();
            assert_eq!((found, &found_param, found_code.as_str()), (status, &json!(param), code));
        }
    }
}

#[tokio::test]
async fn a_full_queue_is_reported_and_counted() {
    let mut setup = Setup::default();
    setup.engine.scheduler.max_queued_requests = 0;
    let server = Server::start(setup).await;
    let mut client = server.connect().await;
    let reply = client.post("/v1/chat/completions", &chat(json!({}))).await;
    let (status, error_type, _, code) = reply.error();
    assert_eq!((status, error_type.as_str(), code.as_str()), (503, "server_error", "overloaded"));
    assert!(reply.header("retry-after").is_some_and(|s| s.parse::<u32>().is_ok_and(|s| s > 0)));
    let scrape = client.get("/metrics").await;
    assert!(scrape.text().contains(
        "vllm:admission_rejections_total{model_name=\"paper\",engine=\"0\",reason=\"queue_full\"} 1"
    ));
}

#[tokio::test]
async fn a_chunked_body_is_cut_at_the_limit() {
    let server = Server::start(Setup::default()).await;
    let mut client = server.connect().await;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                transfer-encoding: chunked\r\n\r\n";
    client.send(head).await;
    let chunk = [format!("{:x}\r\n", 1 << 20).as_bytes(), &vec![b' '; 1 << 20], b"\r\n"].concat();
    for _ in 0..9 {
        client.send(&chunk).await;
    }
    assert_eq!(client.reply().await.expect("an answer").error().3, "request_too_large");
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn a_half_closed_client_is_answered() {
    let server = Server::start(Setup::default()).await;
    let body = chat(json!({"max_tokens": 50, "ignore_eos": true})).to_string();
    let mut client = server.connect().await;
    client.send(post_bytes("/v1/chat/completions", &body, &[])).await;
    client.stream.shutdown().await.expect("a half close");
    assert_eq!(client.reply().await.expect("an answer").status, 200);
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let server = Server::start(Setup::default()).await;
    let mut client = server.connect().await;
    let first = post_bytes(
        "/v1/completions",
        &crate::harness::completion(json!({"max_tokens": 20})).to_string(),
        &[],
    );
    let gets = (0..200).map(|i| format!("GET /nothing/{i} HTTP/1.1\r\nhost: localhost\r\n\r\n"));
    let rest: String = gets.collect();
    client.send([first.as_slice(), rest.as_bytes()].concat()).await;
    assert_eq!(client.reply().await.expect("an answer").status, 200);
    for i in 0..200 {
        let reply = client.reply().await.expect("an answer");
        assert!(reply.text().contains(&format!("/nothing/{i}.")), "{}", reply.text());
    }
}

#[tokio::test]
async fn valid_request_ids_are_returned() {
    let server = Server::start(Setup::default()).await;
    let mut client = server.connect().await;
    for (sent, is_kept) in [("abc-123", true), ("a b", false), (&*"x".repeat(200), false)] {
        client.send(format!("GET /health HTTP/1.1\r\nhost: localhost\r\nx-request-id: {sent}\r\n\r\n")).await;
        let reply = client.reply().await.expect("an answer");
        assert_eq!(reply.header("x-request-id") == Some(sent), is_kept, "{reply:?}");
    }
}

#[tokio::test]
async fn slow_heads_and_bodies_are_dropped() {
    let mut setup = Setup::default();
    setup.config.server.header_timeout_s = 1;
    setup.config.server.body_timeout_s = 1;
    let server = Server::start(setup).await;
    let mut head = server.connect().await;
    head.send("GET /health HTTP/1.1\r\nhost: local").await;
    assert_eq!(head.reply().await.expect("an answer").status, 408);
    assert!(head.is_closed().await);
    let mut body = server.connect().await;
    body.send(&post_bytes("/tokenize", "{\"prompt\": \"abc\"}", &[])[..100]).await;
    let reply = body.reply().await.expect("an answer");
    assert_eq!(reply.error().3, "request_timeout");
    assert!(body.is_closed().await);
    assert!(server.connect().await.is_closed().await, "a silent connection ends");
}

#[tokio::test]
async fn keys_are_required_and_never_printed() {
    let mut config = GatewayConfig::default();
    config.access.api_keys = vec![Secret::new("canary-key")];
    let server = Server::start(Setup { config, ..Setup::default() }).await;
    let body = chat(json!({"max_tokens": 2})).to_string();
    let ask = |field: &str| {
        let fields: Vec<&str> = field.split('\n').filter(|f| !f.is_empty()).collect();
        post_bytes("/v1/chat/completions", &body, &fields)
    };
    let long = format!("authorization: Bearer {}", "x".repeat(64 << 10));
    for field in [
        "",
        "authorization: Bearer",
        "authorization: Bearer wrong",
        "authorization: Basic canary-key",
        "authorization: Bearer canary-key\nauthorization: Bearer canary-key",
        "x-api-key: ' OR 1=1 --",
        "authorization: Bearer schlüssel",
        &long,
    ] {
        let mut client = server.connect().await;
        client.send(ask(field)).await;
        let reply = client.reply().await.expect("an answer");
        let (status, _, _, code) = reply.error();
        let (expected, challenge) = match field {
            "" => ("missing_api_key", "Bearer"),
            _ => ("invalid_api_key", "Bearer error=\"invalid_token\""),
        };
        assert_eq!((status, code.as_str()), (401, expected), "{field:.60}");
        assert_eq!(reply.header("www-authenticate"), Some(challenge), "{field:.60}");
        assert!(!reply.text().contains("canary"));
    }
    for field in ["authorization: Bearer canary-key", "x-api-key: canary-key"] {
        let mut client = server.connect().await;
        client.send(ask(field)).await;
        assert_eq!(client.reply().await.expect("an answer").status, 200);
        client.send("GET /metrics HTTP/1.1\r\nhost: localhost\r\nx-api-key: canary-key\r\n\r\n").await;
        assert!(!client.reply().await.expect("an answer").text().contains("canary"));
    }
    let mut client = server.connect().await;
    for path in ["/", "/ui/app.js", "/health", "/health/live", "/health/ready", "/ping", "/version"] {
        assert_eq!(client.get(path).await.status, 200, "{path}");
    }
    for path in ["/metrics", "/load", "/v1/models", "/v1/models/paper", "/openapi.json"] {
        assert_eq!(client.get(path).await.status, 401, "{path}");
    }
}
