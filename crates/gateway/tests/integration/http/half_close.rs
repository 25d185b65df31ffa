//! Clients that close their side of the connection: those that still read get their whole answer; for those
//! that have disconnected, computation stops.

use std::time::Duration;

use crate::harness::{Client, PATIENCE, Server, Setup, completion, post_bytes};
use serde_json::json;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const STEP: Duration = Duration::from_millis(1);
const MAX_TOKENS: u64 = 4000;

fn n_output(server: &Server) -> u64 {
    server.engine.stats().scheduler.counters.output_tokens
}

fn request(n_tokens: u64, is_stream: bool, version: &str) -> Vec<u8> {
    let body =
        completion(json!({"stream": is_stream, "ignore_eos": true, "max_tokens": n_tokens, "seed": 7}));
    let bytes = post_bytes("/v1/completions", &body.to_string(), &[]);
    String::from_utf8(bytes).expect("text").replacen("HTTP/1.1", version, 1).into_bytes()
}

/// The ways in which a client can disconnect.
fn leave(client: &Client, way: usize) {
    let socket = SockRef::from(&client.stream);
    match way % 3 {
        0 => {}
        1 => socket.set_linger(Some(Duration::ZERO)).expect("an option"),
        _ => socket.shutdown(std::net::Shutdown::Both).expect("a connected socket"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_computed_for_a_client_that_disconnects_after_its_request() {
    for (is_stream, version) in
        [(false, "HTTP/1.1"), (true, "HTTP/1.1"), (false, "HTTP/1.0"), (true, "HTTP/1.0")]
    {
        let server = Server::start(Setup { step_time: STEP, ..Setup::default() }).await;
        let n_clients = 150;
        let mut kept = Vec::new();
        for i in 0..n_clients {
            let mut client = server.connect().await;
            client.send(request(MAX_TOKENS, is_stream, version)).await;
            if i % 5 == 0 {
                // Keeps hyper from seeing the end of the input.
                client.send("GET /more").await;
            }
            leave(&client, i);
            if i % 3 == 2 {
                // Shut down in both directions and never closed.
                kept.push(client);
            }
        }
        // This request is queued after all of them.
        let mut present = server.connect().await;
        assert_eq!(present.post("/v1/completions", &completion(json!({"max_tokens": 5}))).await.status, 200);
        server.idle().await;
        let n_made = n_output(&server);
        println!("{version}, stream {is_stream}: {n_made} tokens for {n_clients} clients that had gone");
        assert!(n_made < n_clients as u64 * MAX_TOKENS / 4, "{version}, stream {is_stream}: {n_made}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_closed_client_gets_the_whole_answer_at_any_time() {
    const N_TOKENS: u64 = 300;
    let server = Server::start(Setup { step_time: STEP, ..Setup::default() }).await;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for (is_stream, version) in
        [(false, "HTTP/1.1"), (true, "HTTP/1.1"), (false, "HTTP/1.0"), (true, "HTTP/1.0")]
    {
        let clients = (0..20).map(|_| {
            let after = Duration::from_millis(random.u64(..600));
            let (address, bytes) = (server.address, request(N_TOKENS, is_stream, version));
            tokio::spawn(async move {
                let mut client = Client::connect(address).await;
                client.send(&bytes).await;
                // Not a wait for an event: the time of the disconnect is what is varied.
                tokio::time::sleep(after).await;
                client.stream.shutdown().await.expect("a connected socket");
                let mut answer = String::new();
                let read = client.stream.read_to_string(&mut answer);
                tokio::time::timeout(PATIENCE, read).await.expect("an end").expect("no reset");
                (after, answer)
            })
        });
        for client in clients.collect::<Vec<_>>() {
            let (after, answer) = client.await.expect("no panic");
            let case = format!("{version}, stream {is_stream}, after {after:?}: {answer:?}");
            assert!(answer.starts_with(&format!("{version} 200 OK\r\n")), "{case}");
            if is_stream {
                assert!(answer.contains("data: [DONE]\n\n"), "{case}");
            } else {
                assert!(answer.contains(&format!("\"completion_tokens\":{N_TOKENS}")), "{case}");
            }
        }
    }
}

#[tokio::test]
async fn a_half_closed_client_that_disconnects_is_detected() {
    let server = Server::start(Setup { step_time: 3 * STEP, ..Setup::default() }).await;
    let mut client = server.connect().await;
    client.send(request(MAX_TOKENS, false, "HTTP/1.1")).await;
    client.stream.shutdown().await.expect("a connected socket");
    // The response has begun before its status is known.
    let mut first = [0; 2];
    client.stream.read_exact(&mut first).await.expect("a sign of life");
    assert_eq!(&first, b"HT");
    drop(client);
    server.idle().await;
    assert!(n_output(&server) < MAX_TOKENS, "{}", n_output(&server));
}
