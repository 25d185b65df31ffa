//! A server whose files may not grow any more (`ulimit -f`, `LimitFSIZE=`) answers, says what it cannot
//! write, and writes again when they may.
#![cfg(target_os = "linux")]

#[path = "integration/process/mod.rs"]
mod process;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use process::{LIMIT, Server, free_port};

/// Most keys that are made until a file is full.
const MAX_KEYS: usize = 2_000;

fn limit(server: &Server, bytes: &str) {
    let mut prlimit = Command::new("prlimit");
    prlimit.args(["--pid", &server.process.id().to_string(), &format!("--fsize={bytes}:")]);
    assert!(prlimit.status().unwrap().success(), "{bytes}");
}

fn make_key(operator_port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", operator_port)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let body = r#"{"organisation": "o", "project": "p"}"#;
    let head = format!(
        "POST /admin/keys HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer operator\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn length(path: &Path) -> u64 {
    path.metadata().map_or(0, |found| found.len())
}

#[test]
fn a_file_that_may_not_grow_ends_no_server() {
    let folder = tempfile::tempdir().unwrap();
    let (database, log) = (folder.path().join("throng.db"), folder.path().join("throng.db-wal"));
    let name = database.to_str().unwrap().to_owned();
    let operator_port = free_port();
    let listen = format!("127.0.0.1:{operator_port}");
    let flags = ["--database", &name, "--admin-key", "operator", "--admin-listen", &listen];
    let mut server = Server::start(&flags, |_| {});
    server.ready();
    let made = make_key(operator_port);
    assert!(made.starts_with("HTTP/1.1 200 ") || made.starts_with("HTTP/1.1 201 "), "{made}");
    for round in 0..2 {
        let most = length(&database).max(length(&log)) + (64 << 10);
        limit(&server, &most.to_string());
        let refused =
            (0..MAX_KEYS).map(|_| make_key(operator_port)).find(|told| !told.starts_with("HTTP/1.1 20"));
        let refused = refused.expect("a file is full");
        assert!(refused.starts_with("HTTP/1.1 503 "), "round {round}: {refused}");
        let health = server.ask("GET", "/health", "");
        assert!(health.starts_with("HTTP/1.1 200 ") && health.contains("degraded"), "{health}");
        limit(&server, "unlimited");
        let made = make_key(operator_port);
        assert!(made.starts_with("HTTP/1.1 20"), "round {round}: {made}");
        let health = server.ask("GET", "/health", "");
        assert!(health.starts_with("HTTP/1.1 200 ") && !health.contains("degraded"), "{health}");
    }
    server.signal("TERM");
    assert_eq!(server.end().code(), Some(0));
}
