//! A large answer is sent to a client about as fast as the machine's loopback allows.

use std::time::{Duration, Instant};

use crate::harness::{Client, PATIENCE, Server, Setup, completion, post_bytes};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Reads to the end; returns the bytes, and the time since the first of them.
async fn read_all(stream: &mut TcpStream) -> (usize, Duration) {
    let mut scrap = vec![0; 64 << 10];
    let mut n_bytes = stream.read(&mut scrap).await.expect("bytes");
    let start = Instant::now();
    loop {
        match stream.read(&mut scrap).await.expect("no reset") {
            0 => return (n_bytes, start.elapsed()),
            n => n_bytes += n,
        }
    }
}

async fn plain_transfer(n_bytes: usize) -> Duration {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound socket");
    let sender = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a client");
        stream.write_all(&vec![7; n_bytes]).await.expect("a reader");
    });
    let mut stream = TcpStream::connect(address).await.expect("a listener");
    let (n_read, time) = read_all(&mut stream).await;
    sender.await.expect("no panic");
    assert_eq!(n_read, n_bytes);
    time
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_answer_is_not_slowed_by_the_socket_buffer() {
    let server = Server::start(Setup::default()).await;
    let body = completion(json!({"ignore_eos": true, "max_tokens": 4000, "logprobs": 20, "n": 8}));
    let mut client = Client::connect(server.address).await;
    client.send(post_bytes("/v1/completions", &body.to_string(), &["connection: close"])).await;
    let read = tokio::time::timeout(PATIENCE, read_all(&mut client.stream));
    let (n_bytes, time) = read.await.expect("an answer");
    let plain = plain_transfer(n_bytes).await;
    println!("{n_bytes} bytes in {time:?}; a plain transfer takes {plain:?}");
    assert!(n_bytes > 4 << 20, "{n_bytes}");
    assert!(time < 100 * plain + Duration::from_millis(500), "{time:?} against {plain:?}");
}
