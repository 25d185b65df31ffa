//! Where the time of a request went, over real sockets: the parts add up, others are counted and never named,
//! and each key finds its own requests only.

use std::time::Duration;

use crate::harness::{Client, Reply, Server, Setup, chat, post_bytes};
use serde_json::{Value, json};
use throng_gateway::Secret;

const KEYS: [&str; 2] = ["key-of-one", "key-of-another"];

fn with_keys() -> Setup {
    let mut setup = Setup::default();
    setup.config.access.api_keys = KEYS.into_iter().map(Secret::new).collect();
    setup
}

/// Sends a chat and waits for the answer and, as the report comes after it, for its explanation.
async fn ask(server: &Server, key: &str, id: &str, fields: Value) -> Reply {
    let mut client = server.connect().await;
    let head = [format!("authorization: Bearer {key}"), format!("x-request-id: {id}")];
    let body = chat(fields).to_string();
    client.send(post_bytes("/v1/chat/completions", &body, &[&head[0], &head[1]])).await;
    client.reply().await.expect("an answer")
}

async fn get(server: &Server, key: &str, path: &str) -> Reply {
    let mut client: Client = server.connect().await;
    client
        .send(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\r\n"))
        .await;
    client.reply().await.expect("an answer")
}

async fn explanation(server: &Server, key: &str, id: &str) -> Value {
    loop {
        let reply = get(server, key, &format!("/explain/{id}")).await;
        if reply.status == 200 {
            return reply.json();
        }
        assert_eq!(reply.error().3, "request_not_found");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_phases_add_up_and_the_engine_tells_of_its_steps() {
    let server = Server::start(with_keys()).await;
    let text = "word ".repeat(300);
    let messages = json!([{"role": "user", "content": text}]);
    let fields = json!({"messages": messages, "max_tokens": 5, "ignore_eos": true, "n": 2});
    let reply = ask(&server, KEYS[0], "whole", fields).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let timing = reply.header("server-timing").expect("a header");
    for part in ["queue;dur=", "prefill;dur=", "decode;dur=", "read;dur=", "tokenize;dur=", "total;dur="] {
        assert!(timing.contains(part), "{timing}");
    }
    let told = explanation(&server, KEYS[0], "whole").await;
    let phases = told["phases"].as_array().expect("a list");
    let names: Vec<&str> = phases.iter().filter_map(|phase| phase["name"].as_str()).collect();
    let all = ["read", "turn", "tokenize", "admit", "queue", "prefill", "decode", "finish"];
    assert_eq!(names, all);
    let sum: f64 = phases.iter().filter_map(|phase| phase["ms"].as_f64()).sum();
    let total = told["total_ms"].as_f64().expect("a number");
    assert!((sum - total).abs() < 0.1, "{sum} of {total}");
    assert_eq!((told["outcome"].as_str(), told["output_tokens"].as_u64()), (Some("length"), Some(10)));
    let generation = &told["generations"][0];
    let chunks = generation["chunks"].as_array().expect("a list");
    let computed: u64 = chunks.iter().filter_map(|chunk| chunk["tokens"].as_u64()).sum();
    assert!(chunks.len() > 1 && computed >= told["prompt_tokens"].as_u64().expect("a number"), "{told}");
    assert!(generation["decode"]["steps"].as_u64() >= Some(4), "{told}");
    assert_eq!(generation["preemptions"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_finds_its_own_requests_only_and_others_are_numbers() {
    let server = Server::start(with_keys()).await;
    // The same id with two keys.
    for (key, n) in KEYS.into_iter().zip([3, 4]) {
        let reply = ask(&server, key, "same-id", json!({"max_tokens": n, "ignore_eos": true})).await;
        assert_eq!(reply.status, 200);
    }
    for (key, n) in KEYS.into_iter().zip([3, 4]) {
        assert_eq!(explanation(&server, key, "same-id").await["output_tokens"], n);
    }
    ask(&server, KEYS[0], "mine", json!({"max_tokens": 2})).await;
    explanation(&server, KEYS[0], "mine").await;
    let other = get(&server, KEYS[1], "/explain/mine").await;
    assert_eq!((other.status, other.error().3.as_str()), (404, "request_not_found"));
    let list = get(&server, KEYS[1], "/explain").await.json();
    let ids: Vec<&str> =
        list["data"].as_array().expect("a list").iter().filter_map(|r| r["request_id"].as_str()).collect();
    assert_eq!(ids, ["same-id"]);
    assert_eq!(list["active_tenants"], 2);
    assert!(!list.to_string().contains("key-"), "a tenant is named: {list}");
    for path in ["/explain", "/explain/mine"] {
        assert_eq!(get(&server, "no-such-key", path).await.status, 401);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_for_a_place_is_told_so() {
    let mut setup = with_keys();
    setup.capacity.max_batch_sequences = 1;
    setup.step_time = Duration::from_millis(2);
    let server = Server::start(setup).await;
    let long = json!({"max_tokens": 40, "ignore_eos": true});
    tokio::join!(
        ask(&server, KEYS[0], "a", long.clone()),
        ask(&server, KEYS[0], "b", long.clone()),
        ask(&server, KEYS[0], "c", long)
    );
    let mut n_waited = 0;
    for id in ["a", "b", "c"] {
        let told = explanation(&server, KEYS[0], id).await;
        let generation = &told["generations"][0];
        assert_eq!(generation["decode"]["batch_mates_max"], 0);
        let waited = generation["waited_for"]["sequences_ms"].as_f64().expect("a number");
        assert!(waited <= generation["queue_ms"].as_f64().expect("a number"));
        n_waited += usize::from(waited > 0.0);
    }
    assert_eq!(n_waited, 2, "all but the first waited for the only place");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_explained_too_and_the_oldest_are_forgotten() {
    let mut setup = with_keys();
    setup.config.observability.max_explained_requests = 2;
    let server = Server::start(setup).await;
    assert_eq!(ask(&server, KEYS[0], "bad", json!({"n": -1})).await.status, 400);
    let told = explanation(&server, KEYS[0], "bad").await;
    assert_eq!(told["status"], 400);
    assert!(told["error"].is_string() && told["generations"] == json!([]), "{told}");
    // Those without a key push nothing out.
    for _ in 0..5 {
        assert_eq!(ask(&server, "no-such-key", "stranger", json!({})).await.status, 401);
    }
    assert_eq!(get(&server, KEYS[0], "/explain/bad").await.status, 200);
    for id in ["next", "last"] {
        ask(&server, KEYS[1], id, json!({"max_tokens": 1})).await;
        explanation(&server, KEYS[1], id).await;
    }
    assert_eq!(get(&server, KEYS[0], "/explain/bad").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_client_has_gone_is_explained() {
    let mut setup = with_keys();
    setup.step_time = Duration::from_millis(2);
    let server = Server::start(setup).await;
    let mut client = server.connect().await;
    let body = chat(json!({"max_tokens": 4000, "ignore_eos": true, "stream": true})).to_string();
    let head = [format!("authorization: Bearer {}", KEYS[0]), "x-request-id: gone".to_owned()];
    client.send(post_bytes("/v1/chat/completions", &body, &[&head[0], &head[1]])).await;
    client.read_until("data: ").await;
    server.has_made(3).await;
    drop(client);
    let told = loop {
        let told = explanation(&server, KEYS[0], "gone").await;
        // The engine's account comes when it has heard of the abort.
        if told["generations"] != json!([]) {
            break told;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    assert_eq!(told["outcome"], "abort");
    assert!(
        told["phases"].as_array().expect("a list").iter().any(|phase| phase["name"] == "decode"),
        "{told}"
    );
}
