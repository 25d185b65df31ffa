//! Runs the gate and hyper on the same bytes, split anywhere: hyper gets exactly the requests that the gate
//! accepted, with bodies as long as the gate counted, and never refuses one itself. The bytes are valid
//! requests with mutations.
#![cfg(test)]

use std::convert::Infallible;
use std::sync::Mutex;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

const PIECES: &[&str] = &[
    "\r\n",
    "\n",
    "\r",
    " ",
    "\t",
    ":",
    ";",
    "0",
    "5",
    "ff",
    "\r\n\r\n",
    "0\r\n\r\n",
    "Content-Length: 3\r\n",
    "content-length: 0\r\n",
    "Transfer-Encoding: chunked\r\n",
    "transfer-encoding: identity\r\n",
    "HTTP/1.0",
    "HTTP/1.1",
    "GET / HTTP/1.1\r\n",
    "x: y\r\n",
    " folded\r\n",
    "a=b",
    "\0",
    "\u{e9}",
    "connection: close\r\n",
    "connection: keep-alive\r\n",
    "expect: 100-continue\r\n",
    "CONNECT",
    "upgrade: h2c\r\n",
    "%ff",
    "*",
    "//",
    "\\",
];

const SEEDS: &[&str] = &[
    "GET /a HTTP/1.1\r\nhost: h\r\n\r\n",
    "POST /b HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\n\r\nhello",
    "POST /c HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n",
    "POST /d HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\na: b\r\nc:\r\n\r\n",
    "\r\nOPTIONS * HTTP/1.1\r\nhost: h\r\nx: \t y \t\r\n\r\n",
    "PUT http://h/e?f HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
    "GET /g HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
];

fn stream(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        (0..random.usize(1..5)).flat_map(|_| random.choice(SEEDS).expect("some").bytes()).collect();
    for _ in 0..random.usize(..4) {
        let at = random.usize(..=bytes.len());
        let to = (at + random.usize(..4)).min(bytes.len());
        let piece = if random.bool() { *random.choice(PIECES).expect("some") } else { "" };
        bytes.splice(at..to, piece.bytes());
    }
    bytes
}

/// The output of the gate when only this test reads it, and the state of the connection.
async fn through_the_gate(bytes: &[u8], cuts: &[usize]) -> (Vec<u8>, Arc<ConnectionState>) {
    let state = Arc::new(ConnectionState::default());
    let mut gate = Http1Gate::new(source(bytes, cuts), state.clone(), false);
    let mut out = Vec::new();
    // The stand-in is the last output, and the gate does not end the input after it.
    let mut chunk = [0; 37];
    while !out.ends_with(STAND_IN) {
        match gate.read(&mut chunk).await {
            Ok(0) | Err(_) => break,
            Ok(n) => out.extend_from_slice(&chunk[..n]),
        }
    }
    (out, state)
}

/// A socket on which `bytes` arrive in pieces.
fn source(bytes: &[u8], cuts: &[usize]) -> tokio::io::DuplexStream {
    let (server, mut client) = tokio::io::duplex(256 << 10);
    let (bytes, cuts) = (bytes.to_vec(), cuts.to_vec());
    tokio::spawn(async move {
        let mut rest = bytes.as_slice();
        for cut in cuts {
            let (piece, after) = rest.split_at(cut.min(rest.len()));
            rest = after;
            let _ = client.write_all(piece).await;
            tokio::task::yield_now().await;
        }
        let _ = client.write_all(rest).await;
        let _ = client.shutdown().await;
        // Reads responses until the server closes.
        let _ = client.read_to_end(&mut Vec::new()).await;
    });
    server
}

/// One request as seen by hyper: its request line, and its body unless that was broken.
type Seen = (String, Option<Bytes>);

/// The requests that hyper gets, and whether hyper itself refused one.
async fn through_hyper(io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> (Vec<Seen>, bool) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let service = {
        let seen = seen.clone();
        hyper::service::service_fn(move |request: http::Request<Incoming>| {
            let seen = seen.clone();
            async move {
                let line = format!("{} {} {:?}", request.method(), request.uri(), request.version());
                let body = request.into_body().collect().await.ok().map(|body| body.to_bytes());
                seen.lock().expect("unpoisoned").push((line, body));
                Ok::<_, Infallible>(http::Response::new(Full::new(Bytes::new())))
            }
        })
    };
    let connection = hyper::server::conn::http1::Builder::new()
        .half_close(true)
        .max_headers(256)
        .max_buf_size(128 << 10)
        .serve_connection(TokioIo::new(io), service);
    let complained = connection.await.is_err_and(|error| error.is_parse() || error.is_parse_too_large());
    let seen = seen.lock().expect("unpoisoned").clone();
    (seen, complained)
}

#[tokio::test]
async fn hyper_sees_what_the_gate_accepts() {
    let seed: u64 = std::env::var("THRONG_SEED")
        .map_or_else(|_| fastrand::u64(..), |seed| seed.parse().expect("a number"));
    println!("THRONG_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut n_refused, mut n_seen) = (0, 0);
    for _ in 0..1500 {
        let bytes = stream(&mut random);
        let cuts: Vec<usize> = (0..random.usize(..6)).map(|_| random.usize(..40)).collect();
        let shown = format!("THRONG_SEED={seed} {:?} {cuts:?}", String::from_utf8_lossy(&bytes));
        let (passed, state) = through_the_gate(&bytes, &cuts).await;
        // The result does not depend on how the bytes are split.
        assert_eq!(passed, through_the_gate(&bytes, &[]).await.0, "{shown}");
        let (direct, complained) = through_hyper(source(&passed, &[])).await;
        assert!(!complained, "hyper refuses what the gate accepted: {shown}");
        let gated_state = Arc::new(ConnectionState::default());
        let gate = Http1Gate::new(source(&bytes, &cuts), gated_state.clone(), false);
        let (gated, complained) = through_hyper(gate).await;
        assert!(!complained, "{shown}");
        assert_eq!(gated, direct, "{shown}");
        // Each accepted head became one request, unless an earlier one ended the connection.
        let refused = (1..=direct.len() + 1).find(|&number| state.refusal(number).is_some());
        n_refused += usize::from(refused.is_some());
        n_seen += direct.len();
        let is_stood_in = passed.ends_with(STAND_IN);
        if let (Some(number), false) = (refused, is_stood_in) {
            assert!(direct.get(number - 1).is_none_or(|(_, body)| body.is_none()), "{shown}");
        }
        // hyper alone reads the same requests at first.
        let (alone, _) = through_hyper(source(&bytes, &cuts)).await;
        let n_in_order = refused.map_or(gated.len(), |number| number - 1).min(gated.len());
        assert_eq!(&alone[..n_in_order.min(alone.len())], &gated[..n_in_order], "{shown}");
    }
    assert!(n_refused > 150 && n_seen > 1500, "{n_refused} {n_seen}");
}
