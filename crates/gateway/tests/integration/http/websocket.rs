//! Frames of WebSocket connections, byte by byte, in the groups of the Autobahn test suite: framing, pings,
//! pongs, reserved bits, opcodes, fragmentation, UTF-8, closing, limits. The server echoes nothing: a message
//! that is no JSON is answered with an error, which shows that it came whole.

use std::time::Duration;

use crate::harness::{Client, Server, Setup};
use tokio::io::AsyncReadExt;

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CONTINUATION: u8 = 0;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
const FIN: u8 = 0x80;

/// A connection after its handshake.
struct Raw(Client);

/// A frame of the server.
#[derive(Debug, PartialEq, Eq)]
struct Frame {
    first: u8,
    payload: Vec<u8>,
}

impl Raw {
    async fn open(server: &Server) -> Self {
        let mut client = server.connect().await;
        client.send(HANDSHAKE).await;
        let reply = client.reply().await.expect("an answer");
        assert_eq!(reply.status, 101, "{}", reply.text());
        assert_eq!(reply.header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        assert_eq!(reply.header("sec-websocket-extensions"), None);
        Self(client)
    }

    async fn send(&mut self, first: u8, payload: &[u8]) {
        self.0.send(frame(first, payload)).await;
    }

    async fn next(&mut self) -> Option<Frame> {
        let read = async {
            let stream = &mut self.0.stream;
            let first = stream.read_u8().await.ok()?;
            let n = match stream.read_u8().await.ok()? {
                126 => usize::from(stream.read_u16().await.ok()?),
                127 => stream.read_u64().await.ok()? as usize,
                n => usize::from(n),
            };
            assert!(n < 1 << 20, "servers do not mask");
            let mut payload = vec![0; n];
            stream.read_exact(&mut payload).await.ok()?;
            Some(Frame { first, payload })
        };
        tokio::time::timeout(crate::harness::PATIENCE, read).await.expect("a frame or the end")
    }

    /// The code of the server's close, which must come next and be the end.
    async fn closed(&mut self) -> u16 {
        let close = self.next().await.expect("a close");
        assert_eq!(close.first, FIN | CLOSE, "{close:?}");
        let code = close.payload.first_chunk().map_or(1005, |code| u16::from_be_bytes(*code));
        assert!(std::str::from_utf8(close.payload.get(2..).unwrap_or_default()).is_ok());
        self.send(FIN | CLOSE, &code.to_be_bytes()).await;
        assert_eq!(self.next().await, None);
        code
    }

    /// The message about a message that is no JSON, which shows that that one came.
    async fn told(&mut self) -> String {
        let told = self.next().await.expect("a message");
        assert_eq!(told.first, FIN | TEXT, "{told:?}");
        String::from_utf8(told.payload).expect("text")
    }
}

const HANDSHAKE: &str = "GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nconnection: keep-alive, Upgrade\r\n\
    upgrade: WebSocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
    sec-websocket-extensions: permessage-deflate\r\n\r\n";

/// A masked frame.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [7, 13, 0, 255];
    let mut bytes = vec![first];
    match payload.len() {
        n @ 0..=125 => bytes.push(0x80 | n as u8),
        n @ 126..=0xffff => {
            bytes.push(0x80 | 126);
            bytes.extend((n as u16).to_be_bytes());
        }
        n => {
            bytes.push(0x80 | 127);
            bytes.extend((n as u64).to_be_bytes());
        }
    }
    bytes.extend(mask);
    bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    bytes
}

#[tokio::test]
async fn messages_come_whole_whatever_their_frames_are() {
    let server = Server::start(Setup::default()).await;
    let mut raw = Raw::open(&server).await;
    for n in [0, 1, 125, 126, 127, 128, 65_535, 65_536, 300_000] {
        raw.send(FIN | TEXT, &vec![b'*'; n]).await;
        assert!(raw.told().await.contains("invalid_json"), "{n}");
    }
    // In fragments, of which some are empty, with pings between them, in single bytes of the socket.
    let mut bytes = frame(TEXT, b"[");
    bytes.extend(frame(FIN | PING, b"are you there?"));
    bytes.extend(frame(CONTINUATION, b""));
    bytes.extend(frame(FIN | PONG, b"unasked"));
    bytes.extend(frame(FIN | CONTINUATION, "\"ü\"]".as_bytes()));
    for byte in bytes {
        raw.0.send([byte]).await;
    }
    let pong = raw.next().await.expect("a pong");
    assert_eq!(pong, Frame { first: FIN | PONG, payload: b"are you there?".to_vec() });
    assert!(raw.told().await.contains("invalid_type"));
    // A character that two fragments share.
    let text = "\"ü\"".as_bytes();
    raw.send(TEXT, &text[..2]).await;
    raw.send(FIN | CONTINUATION, &text[2..]).await;
    assert!(raw.told().await.contains("invalid_type"));
}

#[tokio::test]
async fn pings_are_answered_with_their_bytes() {
    let server = Server::start(Setup::default()).await;
    let mut raw = Raw::open(&server).await;
    for payload in [&b""[..], b"hello", &[0, 255, 254, 253], &[254; 125]] {
        raw.send(FIN | PING, payload).await;
        assert_eq!(raw.next().await, Some(Frame { first: FIN | PONG, payload: payload.to_vec() }));
    }
    raw.send(FIN | PONG, b"unasked").await;
    raw.send(FIN | CLOSE, &1000u16.to_be_bytes()).await;
    assert_eq!(raw.closed().await, 1000);
}

#[tokio::test]
async fn frames_that_break_the_protocol_close_the_connection() {
    let server = Server::start(Setup::default()).await;
    let unmasked = vec![FIN | TEXT, 2, b'{', b'}'];
    let cases: Vec<(&str, Vec<Vec<u8>>, u16)> = vec![
        ("a ping of more than 125 bytes", vec![frame(FIN | PING, &[0; 126])], 1002),
        ("a close of more than 125 bytes", vec![frame(FIN | CLOSE, &[3; 126])], 1002),
        ("a fragmented ping", vec![frame(PING, b"x")], 1002),
        ("a fragmented close", vec![frame(CLOSE, b"")], 1002),
        ("reserved bit 1", vec![frame(FIN | 0x40 | TEXT, b"{}")], 1002),
        ("reserved bit 2", vec![frame(FIN | 0x20 | TEXT, b"{}")], 1002),
        ("reserved bit 3 of a ping", vec![frame(FIN | 0x10 | PING, b"")], 1002),
        ("an unmasked frame", vec![unmasked], 1002),
        ("a continuation of nothing", vec![frame(FIN | CONTINUATION, b"{}")], 1002),
        ("text within fragments", vec![frame(TEXT, b"{"), frame(FIN | TEXT, b"}")], 1002),
        (
            "invalid UTF-8",
            vec![frame(FIN | TEXT, b"\"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80\"")],
            1007,
        ),
        ("a cut character", vec![frame(FIN | TEXT, b"\"\xf0\x9f\x98")], 1007),
        ("an overlong character", vec![frame(FIN | TEXT, b"\xc0\xaf")], 1007),
        ("invalid UTF-8 in a fragment", vec![frame(TEXT, b"\"\xff"), frame(FIN | CONTINUATION, b"\"")], 1007),
        ("a binary message", vec![frame(FIN | BINARY, b"{}")], 1003),
        ("a close of one byte", vec![frame(FIN | CLOSE, &[3])], 1002),
        ("a close with invalid UTF-8", vec![frame(FIN | CLOSE, &[3, 232, 0xc0, 0xaf])], 1007),
    ];
    let opcodes =
        (3..=7).chain(11..=15).map(|code| ("a reserved opcode", vec![frame(FIN | code, b"")], 1002));
    for (what, frames, code) in cases.into_iter().chain(opcodes) {
        let mut raw = Raw::open(&server).await;
        raw.0.send(frames.concat()).await;
        assert_eq!(raw.closed().await, code, "{what}");
    }
}

#[tokio::test]
async fn closes_are_answered_by_their_codes() {
    let server = Server::start(Setup::default()).await;
    for code in [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999] {
        let mut raw = Raw::open(&server).await;
        raw.send(FIN | CLOSE, &[&u16::to_be_bytes(code)[..], "bye ü".as_bytes()].concat()).await;
        assert_eq!(raw.closed().await, code);
    }
    for code in [0u16, 999, 1004, 1005, 1006, 1016, 2000, 2999, 5000, 65_535] {
        let mut raw = Raw::open(&server).await;
        raw.send(FIN | CLOSE, &code.to_be_bytes()).await;
        assert_eq!(raw.closed().await, 1002, "{code}");
    }
    // A close without a code; what follows a close is not looked at.
    let mut raw = Raw::open(&server).await;
    raw.0.send([frame(FIN | CLOSE, b""), frame(FIN | TEXT, b"{}"), frame(FIN | PING, b"")].concat()).await;
    assert_eq!(raw.closed().await, 1005);
}

#[tokio::test]
async fn messages_are_bounded_in_one_frame_and_in_several() {
    let mut setup = Setup::default();
    setup.config.api.max_body_bytes = 4096;
    let server = Server::start(setup).await;
    let mut raw = Raw::open(&server).await;
    raw.send(FIN | TEXT, &[b'*'; 4096]).await;
    assert!(raw.told().await.contains("invalid_json"));
    // A length that is announced is refused before its bytes have come.
    raw.0.send(&frame(FIN | TEXT, &[b'*'; 5000])[..20]).await;
    assert_eq!(raw.closed().await, 1009);
    let mut raw = Raw::open(&server).await;
    raw.send(TEXT, &[b'*'; 4096]).await;
    raw.send(CONTINUATION, b"*").await;
    assert_eq!(raw.closed().await, 1009);
    let mut raw = Raw::open(&server).await;
    raw.0.send([&[FIN | TEXT, 0xff][..], &u64::MAX.to_be_bytes(), &[0; 4]].concat()).await;
    let code = raw.closed().await;
    assert!([1002, 1009].contains(&code), "{code}");
}

#[tokio::test]
async fn a_client_that_answers_no_ping_is_dropped() {
    let mut setup = Setup::default();
    setup.config.api.ping_interval_s = 1;
    let server = Server::start(setup).await;
    let mut raw = Raw::open(&server).await;
    assert_eq!(raw.next().await.expect("a ping").first, FIN | PING);
    raw.send(FIN | PONG, b"").await;
    assert_eq!(raw.next().await.expect("a ping").first, FIN | PING);
    assert_eq!(raw.closed().await, 1001);
}

#[tokio::test]
async fn a_frame_that_comes_too_early_is_not_taken_for_a_request() {
    let server = Server::start(Setup::default()).await;
    let mut client = server.connect().await;
    client.send([HANDSHAKE.as_bytes(), &frame(FIN | TEXT, b"{}")].concat()).await;
    assert_eq!(client.reply().await.expect("an answer").status, 101);
    let told = client.read_until("missing_required_parameter").await;
    assert!(told.contains("error"), "{told}");
    tokio::time::sleep(Duration::ZERO).await;
}
