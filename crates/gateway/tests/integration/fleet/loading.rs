//! A server listens before its models are there, and after it has been told to end: on both sides of its life
//! it says why it does not answer.

use crate::harness::{Server, Setup, chat, completion, post_bytes};
use serde_json::json;
use throng_gateway::Secret;

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_server_says_that_its_model_is_loading_and_then_serves_it_on_the_same_connection() {
    let mut setup = Setup::default();
    setup.config.access.api_keys = vec![Secret::new("key")];
    let (server, loading, model) = Server::without_model(setup).await;
    let mut client = server.connect().await;
    let health = client.get("/health").await;
    assert_eq!(health.error().3, "model_not_ready", "{health:?}");
    assert_eq!((health.status, health.json()["status"].as_str()), (503, Some("loading")));
    assert!(health.json()["total_bytes"].is_null(), "not known yet: {}", health.text());
    loading.report(250, 1000);
    for path in ["/health", "/health/ready", "/ping"] {
        let health = client.get(path).await;
        assert!(health.header("retry-after").is_some(), "{health:?}");
        let told = health.json();
        assert_eq!((told["loaded_bytes"].as_u64(), told["total_bytes"].as_u64()), (Some(250), Some(1000)));
        assert!(told["error"]["message"].as_str().is_some_and(|text| text.contains("25 %")), "{told}");
    }
    assert_eq!(client.get("/health/live").await.status, 200);
    assert_eq!(client.get("/").await.status, 200);
    let key = ["authorization: Bearer key"];
    let body = chat(json!({"max_tokens": 2})).to_string();
    for path in [CHAT, "/v1/completions", "/tokenize", "/detokenize"] {
        client.send(post_bytes(path, &body, &key)).await;
        let reply = client.reply().await.expect("an answer");
        assert!(reply.header("retry-after").is_some(), "{path}");
        assert_eq!((reply.status, reply.error().3.as_str()), (503, "model_not_ready"), "{path}");
    }
    client.send(format!("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n{}\r\n\r\n", key[0])).await;
    assert_eq!(client.reply().await.expect("an answer").error().3, "model_not_ready");
    client.send(post_bytes(CHAT, &body, &[])).await;
    assert_eq!(client.reply().await.expect("an answer").error().3, "missing_api_key");
    assert!(loading.is_live());
    loading.finish(vec![model]).expect("a valid model");
    client.send(post_bytes(CHAT, &body, &key)).await;
    assert_eq!(client.reply().await.expect("an answer").status, 200);
    assert_eq!(client.get("/health").await.status, 200);
}

#[tokio::test]
async fn while_streams_finish_new_connections_are_told_that_the_server_ends() {
    let step_time = std::time::Duration::from_millis(2);
    let mut server = Server::start(Setup { step_time, ..Setup::default() }).await;
    let mut reader = server.connect().await;
    let mut idle = server.connect().await;
    assert_eq!(idle.get("/health/ready").await.status, 200);
    let stream = completion(json!({"stream": true, "ignore_eos": true, "max_tokens": 1500}));
    reader.send(post_bytes("/v1/completions", &stream.to_string(), &[])).await;
    reader.read_until("\"text\":").await;
    server.begin_stop();
    assert!(idle.is_closed().await, "an idle connection closes");
    for _ in 0..3 {
        for path in ["/health", "/health/ready"] {
            let mut late = server.connect().await;
            let reply = late.get(path).await;
            assert_eq!((reply.status, reply.error().3.as_str()), (503, "shutting_down"));
            assert_eq!(reply.header("connection"), Some("close"));
            assert!(late.is_closed().await);
        }
        let reply = server.connect().await.post(CHAT, &chat(json!({}))).await;
        assert_eq!((reply.status, reply.error().3.as_str()), (503, "shutting_down"));
        assert!(reply.header("retry-after").is_some());
    }
    let mut silent = server.connect().await;
    let whole = reader.reply().await.expect("the stream ends");
    assert!(whole.text().ends_with("data: [DONE]\n\n"), "the stream was cut");
    // A connection that never asks does not hold the server up.
    server.stopped().await;
    assert!(silent.is_closed().await);
}

#[tokio::test]
async fn the_tokenizers_configuration_is_shown_if_the_operator_wants_it() {
    for enabled in [false, true] {
        let mut setup = Setup::default();
        setup.config.api.tokenizer_info = enabled;
        let reply = Server::start(setup).await.connect().await.get("/tokenizer_info").await;
        assert_eq!(reply.status, if enabled { 200 } else { 404 });
        assert_eq!(reply.json()["tokenizer_class"].as_str(), enabled.then_some("Paper"));
    }
}
