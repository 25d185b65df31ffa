//! More than the engine can do, over real sockets: who cannot be answered in time is told so at once, and
//! what takes too long ends.

use std::time::Duration;

use crate::harness::{Reply, Server, Setup, completion, post_bytes};
use serde_json::{Value, json};

/// A small engine with slow steps.
fn slow(step_ms: u64) -> Setup {
    let mut setup = Setup { step_time: Duration::from_millis(step_ms), ..Setup::default() };
    setup.engine.scheduler.max_batch_sequences = 2;
    setup
}

async fn post(server: &Server, body: &Value, fields: &[&str]) -> Reply {
    let mut client = server.connect().await;
    client.send(post_bytes("/v1/completions", &body.to_string(), fields)).await;
    client.reply().await.expect("an answer")
}

fn tokens(n: u32) -> Value {
    completion(json!({"max_tokens": n, "ignore_eos": true}))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_would_wait_for_too_long_is_refused_and_told_when_to_come_back() {
    let mut setup = slow(10);
    setup.config.overload.max_queue_wait_ms = 1_000;
    let server = Server::start(setup).await;
    for _ in 0..3 {
        assert_eq!(post(&server, &tokens(20), &[]).await.status, 200, "nothing else runs");
    }
    // Forty requests of about 0.2 s, two at a time: four seconds of work.
    let body = tokens(20);
    let requests = (0..40).map(|_| post(&server, &body, &[]));
    let replies = futures_util::future::join_all(requests).await;
    let (taken, refused): (Vec<&Reply>, Vec<&Reply>) = replies.iter().partition(|reply| reply.status == 200);
    assert!(taken.len() >= 2 && refused.len() >= 5, "{} and {}", taken.len(), refused.len());
    for reply in refused {
        assert_eq!((reply.status, reply.error().3.as_str()), (503, "overloaded"));
        let retry_after: u32 = reply.header("retry-after").and_then(|s| s.parse().ok()).expect("seconds");
        assert!((1..60).contains(&retry_after), "{retry_after}");
    }
    server.idle().await;
    assert_eq!(post(&server, &tokens(20), &[]).await.status, 200, "there is room again");
    let metrics = server.connect().await.get("/metrics").await;
    let counted = "vllm:admission_rejections_total{model_name=\"paper\",engine=\"0\",reason=\"overloaded\"}";
    assert!(metrics.text().contains(counted), "{}", metrics.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_that_cannot_be_met_is_refused() {
    let server = Server::start(slow(20)).await;
    assert_eq!(post(&server, &tokens(50), &[]).await.status, 200);
    server.idle().await;
    let refused = post(&server, &tokens(50), &["x-request-deadline-ms: 100"]).await;
    let (status, _, param, code) = refused.error();
    assert_eq!((status, code.as_str()), (400, "deadline_too_short"), "a second of work");
    assert_eq!(param, "x-request-deadline-ms");
    assert_eq!(post(&server, &tokens(2), &["x-request-deadline-ms: 60000"]).await.status, 200);
    for field in ["x-request-deadline-ms: soon", "x-request-deadline-ms: 0", "x-service-class: urgent"] {
        let (status, _, param, code) = post(&server, &tokens(2), &[field]).await.error();
        assert_eq!((status, code.as_str()), (400, "invalid_value"));
        assert_eq!(param, field.split(':').next().expect("a name"));
    }
    for class in ["system", "interactive", "default", "batch"] {
        let field = format!("x-service-class: {class}");
        assert_eq!(post(&server, &tokens(2), &[&field]).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_takes_too_long_ends_with_an_error() {
    let mut setup = slow(20);
    setup.config.overload.total_timeout_ms = 200;
    let total = Server::start(setup).await;
    let mut setup = slow(300);
    setup.config.overload.first_token_timeout_ms = 50;
    let first_token = Server::start(setup).await;
    let mut setup = slow(300);
    setup.config.overload.idle_timeout_ms = 50;
    let idle = Server::start(setup).await;
    for server in [&total, &first_token, &idle] {
        let reply = post(server, &tokens(1000), &[]).await;
        assert_eq!((reply.status, reply.error().3.as_str()), (504, "generation_timeout"));
        let mut streamed = tokens(1000);
        streamed["stream"] = true.into();
        let events = post(server, &streamed, &[]).await.events();
        let last: Value = serde_json::from_str(events.last().expect("events")).expect("json, not [DONE]");
        assert_eq!(last["error"]["code"], "generation_timeout");
        server.idle().await;
    }
    let asked = Server::start(slow(20)).await;
    // Nothing is known of the engine's speed before its first step, so that it is let in.
    let reply = post(&asked, &tokens(1000), &["x-request-deadline-ms: 200"]).await;
    assert_eq!((reply.status, reply.error().3.as_str()), (504, "generation_timeout"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_too_long_for_its_first_step_is_told_to_come_back() {
    let mut setup = slow(50);
    setup.engine.scheduler.max_batch_sequences = 1;
    setup.engine.queue_timeout_ms = 500;
    setup.config.overload.max_queue_wait_ms = 0;
    let server = Server::start(setup).await;
    let mut running = server.connect().await;
    running.send(post_bytes("/v1/completions", &tokens(100).to_string(), &[])).await;
    while server.engines[0].stats().scheduler.running == 0 {
        tokio::task::yield_now().await;
    }
    let reply = post(&server, &tokens(2), &[]).await;
    assert_eq!((reply.status, reply.error().3.as_str()), (503, "overloaded"));
    assert!(reply.header("retry-after").is_some(), "{reply:?}");
    let mut streamed = tokens(2);
    streamed["stream"] = true.into();
    let events = post(&server, &streamed, &[]).await.events();
    let last: Value = serde_json::from_str(events.last().expect("events")).expect("json, not [DONE]");
    assert_eq!(last["error"]["code"], "overloaded");
    assert_eq!(running.reply().await.expect("an answer").status, 200, "the time of what runs is not limited");
}
