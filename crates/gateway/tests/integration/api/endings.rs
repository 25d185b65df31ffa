//! Answers that end before they are complete: clients that disconnect, clients that do not read, a server
//! that stops.

use std::time::Duration;

use crate::harness::{Client, PATIENCE, Server, Setup, chat, completion, post_bytes};
use serde_json::{Value, json};

const STEP: Duration = Duration::from_millis(1);

fn long_stream() -> Vec<u8> {
    let body = chat(json!({"stream": true, "ignore_eos": true, "max_tokens": 4000}));
    post_bytes("/v1/chat/completions", &body.to_string(), &[])
}

/// How many output tokens the engine has made.
fn n_output(server: &Server) -> u64 {
    server.engine.stats().scheduler.counters.output_tokens
}

#[tokio::test]
async fn a_disconnect_ends_the_request() {
    let server = Server::start(Setup { step_time: STEP, ..Setup::default() }).await;
    let mut client = server.connect().await;
    client.send(long_stream()).await;
    client.read_until("\"content\":\"").await;
    drop(client);
    server.idle().await;
    assert!(n_output(&server) < 4000, "it ended before all tokens were made");

    let mut whole = server.connect().await;
    let body = completion(json!({"ignore_eos": true, "max_tokens": 4000}));
    let before = n_output(&server);
    whole.send(post_bytes("/v1/completions", &body.to_string(), &[])).await;
    let running = async {
        // Longer than the grace period in which a half-closed connection counts as waiting for its answer.
        while n_output(&server) < before + 300 {
            tokio::time::sleep(STEP).await;
        }
    };
    tokio::time::timeout(PATIENCE, running).await.expect("it runs");
    drop(whole);
    server.idle().await;
    assert!(n_output(&server) < before + 4000, "it ended before all tokens were made");
    let scrape = server.connect().await.get("/metrics").await;
    assert!(scrape.text().contains("finished_reason=\"abort\"} 2"), "{}", scrape.text());
}

async fn stream_text(mut client: Client, seed: u64) -> String {
    let body = completion(json!({"stream": true, "max_tokens": 60, "seed": seed, "ignore_eos": true}));
    let chunks = client.post("/v1/completions", &body).await.chunks();
    let text = |chunk: &Value| chunk["choices"][0]["text"].as_str().unwrap_or_default().to_owned();
    chunks.iter().map(text).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_cancellations_do_not_affect_other_requests() {
    let server = Server::start(Setup::default()).await;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut expected = Vec::new();
    for i in 0..8 {
        expected.push(stream_text(server.connect().await, i).await);
    }
    for _ in 0..20 {
        let mates: Vec<_> = (0..8)
            .map(|i| {
                let address = server.address;
                tokio::spawn(async move { stream_text(Client::connect(address).await, i).await })
            })
            .collect();
        for _ in 0..50 {
            let mut client = server.connect().await;
            let bytes = long_stream();
            let n_sent = if random.u8(..4) == 0 { random.usize(..bytes.len()) } else { bytes.len() };
            client.send(&bytes[..n_sent]).await;
            match random.u8(..4) {
                0 => {}
                1 => tokio::task::yield_now().await,
                _ if n_sent == bytes.len() => {
                    client.read_until("data: ").await;
                }
                _ => {}
            }
        }
        for (mate, expected) in mates.into_iter().zip(&expected) {
            assert_eq!(&mate.await.expect("no panic"), expected, "seed {seed}");
        }
    }
    server.idle().await;
}

#[tokio::test]
async fn only_the_client_that_does_not_read_is_dropped() {
    let mut setup = Setup { step_time: Duration::from_micros(200), ..Setup::default() };
    setup.config.server.slow_reader_timeout_s = 1;
    let server = Server::start(setup).await;
    let mut deaf = server.connect().await;
    let body =
        completion(json!({"stream": true, "ignore_eos": true, "max_tokens": 4000, "logprobs": 20, "n": 8}));
    deaf.send(post_bytes("/v1/completions", &body.to_string(), &[])).await;
    let text = stream_text(server.connect().await, 5).await;
    server.idle().await;
    assert_eq!(stream_text(server.connect().await, 5).await, text);
    drop(deaf);
}

#[tokio::test]
async fn a_stopping_server_finishes_its_streams() {
    let mut server = Server::start(Setup { step_time: STEP, ..Setup::default() }).await;
    let mut client = server.connect().await;
    let body = chat(json!({"stream": true, "ignore_eos": true, "max_tokens": 100}));
    client.send(post_bytes("/v1/chat/completions", &body.to_string(), &[])).await;
    client.read_until("\"content\":\"").await;
    server.begin_stop();
    let rest = client.reply().await.expect("the whole stream");
    assert!(rest.text().ends_with("data: [DONE]\n\n"));
    assert!(client.is_closed().await);
    let address = server.address;
    server.stopped().await;
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_stopping_server_ends_long_streams_with_an_error() {
    let mut setup = Setup { step_time: STEP, ..Setup::default() };
    setup.config.server.shutdown_timeout_s = 0;
    let mut server = Server::start(setup).await;
    let mut client = server.connect().await;
    client.send(long_stream()).await;
    client.read_until("\"content\":\"").await;
    server.begin_stop();
    let reply = client.reply().await.expect("the stream, ended properly");
    let events = reply.events();
    let last: Value = serde_json::from_str(events.last().expect("events")).expect("json, not [DONE]");
    assert_eq!(last["error"]["code"], "stream_interrupted");
    assert!(client.is_closed().await);
    server.stopped().await;
}

#[tokio::test]
async fn a_request_that_is_half_sent_is_told_that_the_server_ends() {
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let begun = format!("{head}content-length: 100\r\n\r\n{{");
    let rest = "content-length: 2\r\n\r\n{}";
    // The rest never comes, or a moment later: then it may be read before the server notices its end.
    for (half, rest) in [(head, ""), (begun.as_str(), ""), ("GE", ""), (head, rest)] {
        let mut server = Server::start(Setup::default()).await;
        let mut client = server.connect().await;
        client.send(half).await;
        // What has come is read before another connection is answered.
        assert_eq!(server.connect().await.get("/health").await.status, 200);
        server.begin_stop();
        client.send(rest).await;
        let (status, _, _, code) = client.reply().await.expect("an answer").error();
        let is_answered = !rest.is_empty() && (status, code.as_str()) == (400, "missing_required_parameter");
        assert!(
            is_answered || (status, code.as_str()) == (503, "shutting_down"),
            "{half:?}: {status} {code}"
        );
        assert!(client.is_closed().await);
        server.stopped().await;
    }
}
