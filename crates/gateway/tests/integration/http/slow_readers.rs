//! Streams that are not read do not block others.

use std::time::Duration;

use crate::harness::{Server, Setup, completion, post_bytes};
use serde_json::json;
use throng_testkit::nightly::amount;

const MAX_TOKENS: usize = 4000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_do_not_read_are_paused_and_others_are_served() {
    let n_deaf = amount(100, 300);
    let mut setup = Setup { step_time: Duration::from_micros(100), ..Setup::default() };
    // No stream is dropped here: the healthy one is served because the others are paused.
    setup.config.server.slow_reader_timeout_s = 3600;
    let server = Server::start(setup).await;
    let deaf_body = json!({"stream": true, "ignore_eos": true, "max_tokens": MAX_TOKENS, "logprobs": 20});
    let request = post_bytes("/v1/completions", &completion(deaf_body).to_string(), &[]);
    let mut deaf = Vec::new();
    for _ in 0..n_deaf {
        let mut client = server.connect().await;
        client.send(&request).await;
        deaf.push(client);
    }
    // All others are queued before the healthy one, which is therefore last.
    server.has_made(n_deaf as u64).await;
    let body = completion(json!({"max_tokens": 20, "ignore_eos": true}));
    let reply = server.connect().await.post("/v1/completions", &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let stats = server.engine.stats().scheduler;
    println!("{} tokens made, {} sequences paused", stats.counters.output_tokens, stats.paused);
    assert!(stats.paused > n_deaf / 2, "{stats:?}");
    assert!(stats.counters.output_tokens < (n_deaf * MAX_TOKENS / 2) as u64, "{stats:?}");
    let scrape = server.connect().await.get("/metrics").await;
    assert!(scrape.text().contains("throng_num_requests_paused{"), "{}", scrape.text());
    drop(deaf);
    server.idle().await;
}
