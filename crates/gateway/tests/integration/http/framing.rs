//! HTTP/1 requests that are malformed, or whose end is ambiguous: each is refused with this server's own
//! error object and request id, in order among pipelined requests, and closes the connection, so that the
//! bytes after it do not become a request. Similar but valid requests are answered.

use crate::harness::{Client, PATIENCE, Reply, Server, Setup, post_bytes};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const GET: &str = "GET /version HTTP/1.1\r\nhost: localhost\r\n";
const POST: &str = "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
/// A request that a server with wrong framing would answer.
const SMUGGLED: &str = "GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// The bytes of a bad request, and the answer to it.
struct Bad {
    bytes: Vec<u8>,
    status: u16,
    code: &'static str,
}

fn malformed(bytes: impl Into<Vec<u8>>) -> Bad {
    Bad { bytes: bytes.into(), status: 400, code: "malformed_request" }
}

/// A request with these framing fields, whose body ends earlier if it is read as chunks.
fn with_framing(fields: &str) -> Bad {
    malformed(format!("{POST}{fields}\r\n\r\n0\r\n\r\n{SMUGGLED}"))
}

fn lengths_and_codings() -> Vec<Bad> {
    let lengths = [
        "+2",
        "-1",
        "0x5",
        "",
        "2, 2",
        "2,3",
        "2 2",
        "2;",
        "1e1",
        "\u{663}",
        "18446744073709551616",
        "9223372036854775808",
        "99999999999999999999999999",
        "2\t2",
        "\"2\"",
        "2.0",
        "0b1",
        "2_0",
        "two",
        "5\u{b}",
        "NaN",
        "2,",
        ",2",
        "2\0",
    ];
    let codings = [
        "identity",
        "gzip",
        "gzip, chunked",
        "chunked, identity",
        "chunked, chunked",
        "xchunked",
        "chunkedx",
        "chunked;q=1",
        "\"chunked\"",
        "chunked,",
        "",
        ", chunked",
        "cow",
        "ch\tunked",
        "chunked\u{b}",
        "trailers",
        "deflate",
        "br",
        "chunked chunked",
        "\u{b}chunked",
        "chunked\0",
        "ch\u{130}nked",
        "'chunked'",
        "chunke",
    ];
    let pairs = [
        "content-length: 4\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ncontent-length: 4",
        "Content-Length: 0\r\nTransfer-Encoding: chunked",
        "TRANSFER-ENCODING: CHUNKED\r\nCONTENT-LENGTH: 50",
        "content-length: 4\r\nx: y\r\ntransfer-encoding: chunked",
        "content-length: 4\r\ntransfer-encoding: identity",
        "transfer-encoding: gzip\r\ncontent-length: 4",
        "content-length: 5\r\ncontent-length: 6",
        "content-length: 5\r\ncontent-length: 5",
        "content-length: 5\r\nx: y\r\nContent-Length: 0",
        "content-length: 0\r\ncontent-length: 44",
        "content-length: 5\r\ncontent-length: x",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ntransfer-encoding: identity",
        "transfer-encoding: identity\r\ntransfer-encoding: chunked",
        "transfer-encoding: gzip\r\nTransfer-Encoding: chunked",
        "transfer-encoding:\r\ntransfer-encoding: chunked",
        "content-length: 5\r\ncontent-length: 5\r\ncontent-length: 5",
    ];
    let lengths = lengths.iter().map(|value| with_framing(&format!("content-length: {value}")));
    let codings = codings.iter().map(|value| with_framing(&format!("transfer-encoding: {value}")));
    lengths.chain(codings).chain(pairs.into_iter().map(with_framing)).collect()
}

fn field_lines() -> Vec<Bad> {
    let lines = [
        "transfer-encoding : chunked",
        "transfer-encoding\t: chunked",
        " transfer-encoding: chunked",
        "\ttransfer-encoding: chunked",
        "transfer encoding: chunked",
        "transfer-encoding\0: chunked",
        "transfer-encoding:\0chunked",
        "transfer-encoding:\n chunked",
        "transfer-encoding:\r\n chunked",
        "x: y\ntransfer-encoding: chunked",
        "x: y\rtransfer-encoding: chunked",
        "x: y\r\r\nz: chunked",
        "content-length : 2",
        "content-length\u{b}: 2",
        "content-length\u{a0}: 2",
        ": 2",
        "content-length 2",
        "content-length",
        "\u{7f}: 1",
        "x: \u{7f}",
        "x: \u{1}",
        "\u{e9}: 1",
        "x(): 1",
        "x,y: 1",
        "x[]: 1",
        "x\"y: 1",
        "x@: 1",
        "x/y: 1",
        "x{}: 1",
        "x: 1\r\n folded",
        "x: 1\r\n\tfolded",
        "x;y: 1",
        "x=y: 1",
        "x<y>: 1",
        "x?: 1",
        "x\\: 1",
        "x: \u{8}",
        "x: a\u{1b}[31m",
        "x: 1\n",
        "x: 1\n\r\ny: 2",
        "\r: 1",
        "x: 1\u{c}",
        "GET /version HTTP/1.1",
        "=1",
        "\"x\": 1",
    ];
    lines.iter().map(|line| malformed(format!("{GET}{line}\r\n\r\n{SMUGGLED}"))).collect()
}

fn request_lines() -> Vec<Bad> {
    let lines = [
        "GET  /version HTTP/1.1",
        "GET /version  HTTP/1.1",
        "GET /version HTTP/1.1 ",
        " GET /version HTTP/1.1",
        "GET\t/version\tHTTP/1.1",
        "GET /version",
        "GET",
        "GET /version HTTP",
        "GET /version HTTP/1",
        "GET /version HTTP/1.1x",
        "GET /version http/1.1",
        "GET /version HTTP/11",
        "GET /version HTTP/1.1\t",
        "GET /a b HTTP/1.1",
        "GET /\u{1} HTTP/1.1",
        "GET /\u{7f}\u{8} HTTP/1.1",
        "G(T /version HTTP/1.1",
        "G\0T /version HTTP/1.1",
        "GET HTTP/1.1",
        "G@T / HTTP/1.1",
        "/ GET HTTP/1.1",
        "GET / HTTPS/1.1",
        "GET / HTTP/1.10",
        "GET / HTTP/01.1",
        "GET / HTTP/1,1",
        "GET / HTTP/-1.1",
        "GET / HTTP /1.1",
        "{\"model\": \"paper\"}",
        "SSH-2.0-OpenSSH_9.6",
        "GET / HTTP/1.1\u{b}",
        "GET http://a b HTTP/1.1",
        "GET /\rversion HTTP/1.1",
        "\u{16}\u{3}\u{1}\u{2}",
        "GET:/ HTTP/1.1",
        "GE\u{130} / HTTP/1.1",
        "HTTP/1.1 200 OK",
    ];
    let versions = ["1.2", "2.0", "0.9", "3.0", "9.9", "1.9", "0.0"];
    // URIs refused by the URI parser, not by the parser of the request line, have a code of their own.
    let targets = ["http://[::1/version", "http://"];
    let line = |line: &str| format!("{line}\r\nhost: localhost\r\n\r\n{SMUGGLED}");
    let version = |version: &&str| Bad {
        code: "unsupported_http_version",
        ..malformed(line(&format!("GET /version HTTP/{version}")))
    };
    let target =
        |target: &&str| Bad { code: "invalid_url", ..malformed(line(&format!("GET {target} HTTP/1.1"))) };
    let mut all: Vec<Bad> = lines.iter().map(|text| malformed(line(text))).collect();
    all.extend(versions.iter().map(version));
    all.extend(targets.iter().map(target));
    all.push(malformed(format!("GET /version HTTP/1.1\nhost: localhost\n\n{SMUGGLED}")));
    all.push(malformed(format!("GET /version HTTP/1.1\r\nhost: localhost\n\r\n{SMUGGLED}")));
    all.push(malformed(format!("GET /version HTTP/1.1\r\nhost: localhost\r\n\n{SMUGGLED}")));
    all.push(malformed(format!("GET /version HTTP/1.1\nhost: localhost\r\n\r\n{SMUGGLED}")));
    all.push(malformed(format!("\nGET /version HTTP/1.1\r\nhost: localhost\r\n\r\n{SMUGGLED}")));
    all.push(malformed(format!(
        "POST /tokenize HTTP/1.0\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{SMUGGLED}"
    )));
    all.push(malformed(vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]));
    all.push(Bad {
        code: "unsupported_http_version",
        ..malformed(format!("PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n{SMUGGLED}"))
    });
    all
}

fn chunks() -> Vec<Bad> {
    let long = "x".repeat(5000);
    let bodies = [
        "2\n{}\r\n0\r\n\r\n",
        "2\r\n{}\n0\r\n\r\n",
        "2\r\n{}0\r\n\r\n",
        "g\r\n{}\r\n0\r\n\r\n",
        "\r\n0\r\n\r\n",
        " 2\r\n{}\r\n0\r\n\r\n",
        "2 \r\n{}\r\n0\r\n\r\n",
        "2\t;a\r\n{}\r\n0\r\n\r\n",
        "+2\r\n{}\r\n0\r\n\r\n",
        "-2\r\n{}\r\n0\r\n\r\n",
        "0x2\r\n{}\r\n0\r\n\r\n",
        "2;a\n=b\r\n{}\r\n0\r\n\r\n",
        "2;\0\r\n{}\r\n0\r\n\r\n",
        "2\r{}\r\n0\r\n\r\n",
        "11111111111111111\r\n{}\r\n0\r\n\r\n",
        "00000000000000002\r\n{}\r\n0\r\n\r\n",
        "2\r\n{}X\r\n0\r\n\r\n",
        "2\r\n{}\r\r\n0\r\n\r\n",
        "2\r\n{}\r\n0\r\nX\r\n\r\n",
        "0\r\n folded: 1\r\n\r\n",
        "0\r\na: \0\r\n\r\n",
        "0\r\na: b\n\r\n",
        "0\r\n\rX",
        "0\r\n\n",
        "0\n\r\n",
        "0\r\n: 1\r\n\r\n",
        ";a=b\r\n",
        "2,2\r\n{}\r\n0\r\n\r\n",
        "2_\r\n",
        "\u{662}\r\n{}\r\n0\r\n\r\n",
        "2\r\n{}\r\n0\r\na b: 1\r\n\r\n",
        "2;a\r=b\r\n{}\r\n0\r\n\r\n",
        "{}",
    ];
    let chunked = |body: &str| malformed(format!("{POST}transfer-encoding: chunked\r\n\r\n{body}{SMUGGLED}"));
    let mut all: Vec<Bad> = bodies.iter().map(|body| chunked(body)).collect();
    all.push(chunked(&format!("2;{long}\r\n{{}}\r\n0\r\n\r\n")));
    all.push(chunked(&"1;some=extension\r\nx\r\n".repeat(1000)));
    all.push(chunked(&"1\r\nx\r\n".repeat(10_000)));
    let large = ["a: 1\r\n".repeat(200), format!("a: {long}\r\n")];
    all.extend(large.iter().map(|trailers| Bad {
        status: 431,
        code: "headers_too_large",
        ..chunked(&format!("0\r\n{trailers}\r\n"))
    }));
    all
}

fn sizes() -> Vec<Bad> {
    let large = |fields: String| Bad {
        status: 431,
        code: "headers_too_large",
        ..malformed(format!("{GET}{fields}\r\n{SMUGGLED}"))
    };
    let target = |bytes: String| Bad { status: 414, code: "uri_too_long", ..malformed(bytes) };
    vec![
        large("x: 1\r\n".repeat(100)),
        large("x: 1\r\n".repeat(30_000)),
        large(format!("x: {}\r\n", "y".repeat(16 << 10))),
        large(format!("{}: 1\r\n", "y".repeat(16 << 10))),
        large(format!("{}: 1\r\n", "y".repeat(60 << 10))),
        large(format!("x: {}\r\n", "y".repeat(200 << 10))),
        large(format!("x: {}", "y".repeat(200 << 10))),
        large(format!("{}: 1\r\n", "y".repeat(200 << 10))),
        large(format!("x: {}\r\n", "y".repeat(8 << 10)).repeat(9)),
        large(format!("authorization: {}\r\n", "y".repeat(20 << 10))),
        target(format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n{SMUGGLED}", "y".repeat(8 << 10))),
        target(format!("GET /{}", "y".repeat(200 << 10))),
        target(format!("GET /?{} HTTP/1.1\r\nhost: localhost\r\n\r\n{SMUGGLED}", "y".repeat(70 << 10))),
    ]
}

fn table() -> Vec<Bad> {
    [lengths_and_codings(), field_lines(), request_lines(), chunks(), sizes()].into_iter().flatten().collect()
}

/// Describes what is wrong with the answer and with what follows it.
async fn fault(client: &mut Client, bad: &Bad) -> Option<String> {
    let Some(reply) = client.reply().await else { return Some("closed without an answer".to_owned()) };
    if reply.header("content-type") != Some("application/json") || reply.header("x-request-id").is_none() {
        return Some(format!("not our error: {reply:?}"));
    }
    let (status, error_type, param, code) = reply.error();
    if (status, code.as_str(), &param, error_type.as_str())
        != (bad.status, bad.code, &Value::Null, "invalid_request_error")
    {
        return Some(format!("{status} {code}: {}", reply.text()));
    }
    if reply.header("connection") != Some("close") {
        return Some("does not say that it closes".to_owned());
    }
    (!client.is_closed().await).then(|| "goes on after the refusal".to_owned())
}

#[tokio::test]
async fn malformed_requests_are_refused_in_order_and_the_bytes_after_them_are_not_parsed() {
    let server = Server::start(Setup::default()).await;
    let seed: u64 = std::env::var("THRONG_SEED")
        .map_or_else(|_| fastrand::u64(..), |seed| seed.parse().expect("a number"));
    println!("THRONG_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let table = table();
    assert!(table.len() >= 150, "{}", table.len());
    let mut faults = Vec::new();
    for bad in &table {
        let shown = String::from_utf8_lossy(&bad.bytes[..bad.bytes.len().min(160)]).into_owned();
        for is_second in [false, true] {
            let mut client = server.connect().await;
            let before = if is_second { SMUGGLED.as_bytes() } else { b"" };
            let bytes = [before, &bad.bytes].concat();
            let (first, rest) = bytes.split_at(random.usize(..=bytes.len()));
            client.send(first).await;
            tokio::task::yield_now().await;
            client.send(rest).await;
            if is_second {
                let before = client.reply().await;
                assert_eq!(before.map(|reply| reply.status), Some(200), "before {shown:?}");
            }
            if let Some(fault) = fault(&mut client, bad).await {
                faults.push(format!("{shown:?} (second: {is_second})\n  {fault}"));
            }
        }
    }
    assert!(faults.is_empty(), "{} faults of {}\n{}", faults.len(), table.len(), faults.join("\n"));
    println!("{} malformed requests refused", table.len());
}

async fn answered(client: &mut Client, bytes: &[u8], status: u16) -> Reply {
    client.send(bytes).await;
    let reply =
        client.reply().await.unwrap_or_else(|| panic!("no answer to {}", String::from_utf8_lossy(bytes)));
    assert_eq!(reply.status, status, "{} {}", String::from_utf8_lossy(bytes), reply.text());
    reply
}

#[tokio::test]
async fn unusual_but_well_formed_requests_are_answered_on_one_connection() {
    let server = Server::start(Setup::default()).await;
    let body = json!({"prompt": "abc"}).to_string();
    let n = body.len();
    let (left, right) = body.split_at(5);
    let good = [
        format!("\r\n\r\n{GET}\r\n"),
        format!("{GET}x:\r\n\r\n"),
        format!("{GET}x: \u{e9}\t \r\ny:\t z \t\r\n\r\n"),
        format!("{GET}{}\r\n", "x: 1\r\n".repeat(99)),
        format!("{GET}x: {}\r\n\r\n", "y".repeat((16 << 10) - 1)),
        format!("{GET}{}: 1\r\n\r\n", "y".repeat((16 << 10) - 1)),
        format!("{GET}!#$%&'*+-.^_`|~9: 1\r\n\r\n"),
        "GET http://localhost/version HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(),
        format!("GET /version?{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "y".repeat(8000)),
        format!("{GET}content-length: 0\r\n\r\n"),
        format!("{GET}content-length: 3\r\n\r\nabc"),
        format!("{GET}upgrade: h2c\r\nconnection: upgrade\r\n\r\n"),
        format!("{POST}content-length: 000{n}\r\n\r\n{body}"),
        format!("{POST}Content-Length:\t{n} \r\n\r\n{body}"),
        format!("{POST}Transfer-Encoding: Chunked\r\n\r\n{n:x}\r\n{body}\r\n0\r\n\r\n"),
        format!(
            "{POST}transfer-encoding:chunked\r\n\r\n5\r\n{left}\r\n{:X};a=\"b\"\r\n{right}\r\n000\r\n\r\n",
            n - 5
        ),
        format!("{POST}transfer-encoding: chunked\r\n\r\n{n:x}\r\n{body}\r\n0\r\ndigest: x\r\ny:\r\n\r\n"),
        format!("{POST}expect: 100-continue\r\ncontent-length: {n}\r\n\r\n{body}"),
    ];
    let mut client = server.connect().await;
    for bytes in &good {
        answered(&mut client, bytes.as_bytes(), 200).await;
    }
    client.send(good.concat()).await;
    for bytes in &good {
        assert_eq!(client.reply().await.map(|reply| reply.status), Some(200), "{bytes}");
    }
    let one_by_one = post_bytes("/tokenize", &body, &[]);
    for byte in &one_by_one {
        client.send([*byte]).await;
    }
    assert_eq!(client.reply().await.map(|reply| reply.status), Some(200));
    answered(&mut client, b"GET /version HTTP/1.0\r\n\r\n", 200).await;
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn undecodable_urls_get_our_error() {
    let server = Server::start(Setup::default()).await;
    let mut client = server.connect().await;
    for path in ["/v1/models/%ff", "/v1/models/a%c3", "/ui/%ff%fe", "/v1/models/%ed%a0%80"] {
        let (status, _, param, code) = client.get(path).await.error();
        assert_eq!((status, code.as_str(), param), (400, "invalid_url", Value::Null), "{path}");
    }
    for path in ["/v1/models/%zz", "/v1/models/%", "/v1/models/a%00b", "/v1/models/%252e"] {
        let (status, _, _, code) = client.get(path).await.error();
        assert_eq!((status, code.as_str()), (404, "model_not_found"), "{path}");
    }
    for path in ["/%ff", "/%00", "/v1/%6dodels", "/%2fv1/models", "/v1/./models", "/;/version", "/version/"] {
        let (status, _, _, code) = client.get(path).await.error();
        assert_eq!((status, code.as_str()), (404, "unknown_url"), "{path}");
    }
    assert_eq!(client.get("/v1/models/org%2fpaper").await.status, 200);
    let mut client = server.connect().await;
    client.send("CONNECT localhost:80 HTTP/1.1\r\nhost: localhost:80\r\n\r\n").await;
    assert_eq!(client.reply().await.expect("an answer").error().3, "unsupported_upgrade");
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn an_incomplete_head_gets_our_error_after_earlier_answers() {
    let mut setup = Setup::default();
    setup.config.server.header_timeout_s = 1;
    let server = Server::start(setup).await;
    for before in ["", SMUGGLED] {
        let mut client = server.connect().await;
        if !before.is_empty() {
            answered(&mut client, before.as_bytes(), 200).await;
        }
        client.send("GET /version HTTP/1.1\r\nhost: loc").await;
        let reply = client.reply().await.expect("an answer");
        assert_eq!((reply.status, reply.error().3.as_str()), (408, "request_timeout"));
        assert_eq!(reply.header("connection"), Some("close"));
        assert!(client.is_closed().await);
    }
}

/// Sends one request over HTTP/2 and returns the frames of its stream with their types, until the end of the
/// answer.
async fn over_http2(server: &Server, fields: &[(&str, &str)], body: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let n = u8::try_from(payload.len()).expect("a short frame");
        [&[0, 0, n, kind, flags, 0, 0, 0, stream][..], payload].concat()
    };
    let pseudo =
        [(":method", "POST"), (":scheme", "http"), (":authority", "localhost"), (":path", "/tokenize")];
    let literal = |(name, value): &(&str, &str)| {
        [&[0, name.len() as u8][..], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
    };
    let head: Vec<u8> = pseudo.iter().chain(fields).flat_map(literal).collect();
    let mut stream = server.connect().await.stream;
    let sent = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, &[]),
        frame(1, 4, 1, &head),
        frame(0, 1, 1, body),
    ];
    stream.write_all(&sent.concat()).await.expect("the server reads");
    let mut frames = Vec::new();
    let read = async {
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await.expect("a frame");
            let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
            stream.read_exact(&mut payload).await.expect("a frame's payload");
            let (kind, flags) = (head[3], head[4]);
            let is_last = matches!(kind, 3 | 7) || (matches!(kind, 0 | 1) && flags & 1 == 1);
            if kind == 7 || (head[8] == 1 && matches!(kind, 0 | 1 | 3)) {
                frames.push((kind, payload));
            }
            if is_last {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("an answer");
    frames
}

#[tokio::test]
async fn http1_framing_fields_are_checked_over_http2() {
    let server = Server::start(Setup::default()).await;
    let json = ("content-type", "application/json");
    let body = br#"{"prompt": "abc"}"#;
    // 0x88 and 0x8c are ":status: 200" and ":status: 400" in HPACK's static table.
    let answer = over_http2(&server, &[json, ("content-length", "17")], body).await;
    assert_eq!((answer[0].0, answer[0].1[0]), (1, 0x88), "{answer:?}");
    for lengths in [&[("content-length", "17"), ("content-length", "17")][..], &[("content-length", "+17")]] {
        let answer = over_http2(&server, &[&[json][..], lengths].concat(), body).await;
        let is_reset = answer.last().is_some_and(|(kind, _)| matches!(kind, 3 | 7));
        let text: Vec<u8> =
            answer.iter().filter(|(kind, _)| *kind == 0).flat_map(|(_, p)| p.clone()).collect();
        let is_ours = answer[0].1[0] == 0x8c && String::from_utf8_lossy(&text).contains("malformed_request");
        assert!(is_reset || is_ours, "{lengths:?}: {answer:?}");
    }
    for field in [("transfer-encoding", "chunked"), ("connection", "close"), ("content-length", "5")] {
        let answer = over_http2(&server, &[json, field], body).await;
        let is_reset = answer.last().is_some_and(|(kind, _)| matches!(kind, 3 | 7));
        assert!(is_reset || answer[0].1[0] == 0x8c, "{field:?}: {answer:?}");
    }
}
