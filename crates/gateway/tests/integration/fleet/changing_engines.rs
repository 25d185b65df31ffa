//! Engines of other makers that join a gateway, and that end while nobody asks them. Over real sockets, with
//! engines that answer by script.

use std::time::{Duration, Instant};

use crate::harness::{Client, PATIENCE, chat, post_bytes};
use serde_json::json;
use throng_gateway::ReplicaConfig;

use super::upstreams::{Engine, Place, answer, engine_that_says, models};

/// Engines that answer at the same moment join one model: each of them gets requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 12)]
async fn engines_that_join_at_once_serve_one_model() {
    for _ in 0..6 {
        let at = Instant::now() + Duration::from_millis(300);
        let mut engines = Vec::new();
        for _ in 0..8 {
            let start = Engine::start(move |path, _| match path {
                "/v1/models" => {
                    std::thread::sleep(at.saturating_duration_since(Instant::now()));
                    models(&["m"])
                }
                _ => answer("ok"),
            });
            engines.push(start.await);
        }
        let urls: Vec<_> = engines.iter().map(|engine| format!("http://{}", engine.address)).collect();
        let replicas: Vec<_> = urls.iter().map(|url| ReplicaConfig::of_url(url.as_str())).collect();
        let place = Place::over(&replicas, false).await;
        let all_ready = async {
            while !place.fleet().await.iter().all(|row| row["state"] == "ready") {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, all_ready).await.expect("they answer");
        let mut client = Client::connect(place.address).await;
        for Engine { address, .. } in &engines {
            let field = format!("x-throng-replica: {address}");
            let body = chat(json!({"model": "m"})).to_string();
            client.send(post_bytes("/v1/chat/completions", &body, &[&field])).await;
            let reply = client.reply().await.expect("an answer");
            assert_eq!(reply.status, 200, "{address}: {}", reply.text());
        }
        assert_eq!(client.get("/v1/models").await.json()["data"].as_array().map(Vec::len), Some(1));
    }
}

#[tokio::test]
async fn an_engine_that_is_gone_is_noticed_without_requests() {
    let (engine, place) = engine_that_says(|_| answer("ok")).await;
    let mut client = Client::connect(place.address).await;
    assert_eq!(client.get("/health/ready").await.status, 200);
    engine.accepting.abort();
    let row = place.row(|row| row["state"] == "ejected").await;
    assert!(row["reason"].as_str().is_some_and(|reason| reason.contains("refused")), "{row}");
    assert_eq!(client.get("/health/ready").await.status, 503);
}

#[tokio::test]
async fn names_alone_are_those_of_the_only_model() {
    for (listed, state) in [(vec!["/models/a.gguf"], "ready"), (vec!["a", "b"], "down")] {
        let engine = Engine::start(move |path, _| match path {
            "/v1/models" => models(&listed),
            _ => answer("ok"),
        })
        .await;
        let url = format!("http://{}", engine.address);
        let replica = ReplicaConfig { names: vec!["llama".to_owned()], ..ReplicaConfig::of_url(&url) };
        let place = Place::over(&[replica], false).await;
        let row = place.row(|row| row["state"] == state).await;
        let told = row["reason"].as_str().is_some_and(|reason| reason.contains("'model' must say"));
        assert_eq!(told, state == "down", "{row}");
        let reply = place.ask("/v1/chat/completions", &chat(json!({"model": "llama"}))).await;
        assert_eq!(reply.status == 200, state == "ready", "{}", reply.text());
    }
}
