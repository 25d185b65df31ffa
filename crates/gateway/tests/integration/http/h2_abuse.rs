//! HTTP/2 clients that do not read their answers, or send floods of frames without a request.

use std::collections::BTreeSet;

use crate::harness::{Client, PATIENCE, Server, Setup, completion};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;
const CANCEL: u32 = 8;
const ENHANCE_YOUR_CALM: u32 = 0xb;

#[derive(Debug)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Frame {
    fn code(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().expect("four bytes"))
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn initial_window(n: u32) -> Vec<u8> {
    let mut setting = vec![0, 4];
    setting.extend(n.to_be_bytes());
    frame(SETTINGS, 0, 0, &setting)
}

/// Fields as literals that are neither indexed nor compressed.
fn post(stream: u32, path: &str, body: &Value) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", path),
        ("content-type", "application/json"),
    ];
    let mut block = Vec::new();
    for (name, value) in fields {
        block.extend([0, name.len() as u8]);
        block.extend(name.as_bytes());
        block.push(value.len() as u8);
        block.extend(value.as_bytes());
    }
    let mut bytes = frame(HEADERS, END_HEADERS, stream, &block);
    bytes.extend(frame(DATA, END_STREAM, stream, body.to_string().as_bytes()));
    bytes
}

async fn connect(server: &Server, window: u32) -> Client {
    let mut client = server.connect().await;
    client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    client.send(initial_window(window)).await;
    client
}

/// The next frame; `None` at the end of the connection.
async fn next_frame(stream: &mut (impl AsyncReadExt + Unpin)) -> Option<Frame> {
    let mut header = [0; 9];
    let read = tokio::time::timeout(PATIENCE, stream.read_exact(&mut header)).await;
    read.expect("a frame or an end").ok()?;
    let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = header;
    let mut payload = vec![0; u32::from_be_bytes([0, l0, l1, l2]) as usize];
    stream.read_exact(&mut payload).await.ok()?;
    Some(Frame { kind, flags, stream: u32::from_be_bytes([s0, s1, s2, s3]), payload })
}

fn impatient() -> Setup {
    let mut setup = Setup::default();
    setup.config.server.slow_reader_timeout_s = 1;
    setup
}

#[tokio::test]
async fn only_streams_whose_window_stays_0_are_reset() {
    let server = Server::start(impatient()).await;
    let mut client = connect(&server, 0).await;
    let mut open = BTreeSet::new();
    for i in 0..100 {
        let body = completion(json!({"ignore_eos": true, "max_tokens": 20, "stream": i % 2 == 0}));
        client.send(post(2 * i + 1, "/v1/completions", &body)).await;
        open.insert(2 * i + 1);
    }
    while !open.is_empty() {
        let frame = next_frame(&mut client.stream).await.expect("the connection stays");
        assert_ne!(frame.kind, DATA, "{frame:?}");
        assert_ne!(frame.kind, GOAWAY, "{frame:?}");
        if frame.kind == RST_STREAM {
            assert_eq!(frame.code(), CANCEL);
            open.remove(&frame.stream);
        }
    }
    server.idle().await;
    client.send(initial_window(1 << 20)).await;
    client.send(post(201, "/v1/completions", &completion(json!({"max_tokens": 5})))).await;
    loop {
        let frame = next_frame(&mut client.stream).await.expect("the connection stays");
        if frame.stream == 201 && frame.kind == DATA && frame.flags & END_STREAM != 0 {
            break;
        }
    }
}

async fn held(probe: &mut Client, part: &str) -> usize {
    let reply = probe.get("/metrics").await;
    let name = format!("throng_memory_bytes{{part=\"{part}\"}} ");
    let value = reply.text().lines().find_map(|line| line.strip_prefix(&name)).expect("the part is counted");
    value.parse().expect("a number")
}

#[tokio::test]
async fn buffered_output_of_a_stream_is_counted_once() {
    let server = Server::start(Setup::default()).await;
    let mut probe = server.connect().await;
    let body = completion(json!({
        "prompt": "a".repeat(900), "max_tokens": 4, "echo": true, "logprobs": 3, "seed": 1, "temperature": 0,
    }));
    let n_bytes = probe.post("/v1/completions", &body).await.body.len();
    assert!(n_bytes > 3 * (16 << 10), "{n_bytes} bytes");
    let of_probe = held(&mut probe, "sockets").await;
    let mut client = connect(&server, 1).await;
    client.send(post(1, "/v1/completions", &body)).await;
    let is_held = async {
        while held(&mut probe, "sockets").await <= 2 * of_probe || held(&mut probe, "prompts").await > 0 {}
    };
    tokio::time::timeout(PATIENCE, is_held).await.expect("a frame waits for the client's window");
    let in_sockets = held(&mut probe, "sockets").await - 2 * of_probe;
    assert!((1..=32 << 10).contains(&in_sockets), "{in_sockets} bytes");
    assert_eq!(in_sockets + held(&mut probe, "answers").await, n_bytes);
    drop(client);
    let is_freed = async {
        while held(&mut probe, "sockets").await > of_probe || held(&mut probe, "answers").await > 0 {}
    };
    tokio::time::timeout(PATIENCE, is_freed).await.expect("it is given back with the connection");
}

#[tokio::test]
async fn a_connection_that_never_reads_the_end_of_an_answer_is_closed() {
    let server = Server::start(impatient()).await;
    let mut client = connect(&server, 1).await;
    client.send(post(1, "/v1/completions", &completion(json!({"max_tokens": 5})))).await;
    let mut has_goaway = false;
    while let Some(frame) = next_frame(&mut client.stream).await {
        has_goaway |= frame.kind == GOAWAY;
        if frame.kind == PING && frame.flags & ACK == 0 {
            client.send(self::frame(PING, ACK, 0, &frame.payload)).await;
        }
    }
    assert!(has_goaway);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_frames_without_a_request_end_the_connection() {
    let server = Server::start(Setup::default()).await;
    let floods: [(&str, Vec<u8>); 6] = [
        ("PING", frame(PING, 0, 0, &[7; 8])),
        ("PING ACK", frame(PING, ACK, 0, &[7; 8])),
        ("SETTINGS", frame(SETTINGS, 0, 0, &[])),
        ("PRIORITY", frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 16])),
        ("WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])),
        ("unknown", frame(0xfa, 0, 0, &[])),
    ];
    for (name, frame) in floods {
        let client = connect(&server, 65_535).await;
        let (mut reader, mut writer) = client.stream.into_split();
        let sent = tokio::spawn(async move {
            let mut n_sent = 0;
            let some = frame.repeat(100);
            while n_sent < 1_000_000 && writer.write_all(&some).await.is_ok() {
                n_sent += 100;
            }
            (n_sent, writer)
        });
        let mut told = None;
        while let Some(frame) = next_frame(&mut reader).await {
            if frame.kind == GOAWAY {
                told = Some(frame.code());
            }
        }
        let (n_sent, _) = tokio::time::timeout(PATIENCE, sent).await.expect("an end").expect("no panic");
        println!("{name}: {n_sent} sent");
        assert_eq!(told, Some(ENHANCE_YOUR_CALM), "{name}");
    }
    assert_eq!(server.connect().await.get("/health").await.status, 200);
}

#[tokio::test]
async fn frequent_window_updates_are_not_a_flood() {
    let server = Server::start(Setup::default()).await;
    let mut client = connect(&server, 65_535).await;
    let body = completion(json!({"ignore_eos": true, "max_tokens": 3000, "stream": true}));
    client.send(post(1, "/v1/completions", &body)).await;
    let mut n_frames = 0;
    loop {
        let got = next_frame(&mut client.stream).await.expect("the connection stays");
        assert!(got.kind != GOAWAY && got.kind != RST_STREAM, "{got:?}");
        if got.kind != DATA {
            continue;
        }
        n_frames += 1;
        if got.flags & END_STREAM != 0 {
            break;
        }
        for stream in [0, 1] {
            client.send(frame(WINDOW_UPDATE, 0, stream, &(got.payload.len() as u32).to_be_bytes())).await;
        }
        client.send(frame(PING, 0, 0, &[7; 8])).await;
    }
    println!("{n_frames} frames of data");
    assert!(n_frames > 1000, "{n_frames}: enough updates to be a flood, had nothing been sent");
}
