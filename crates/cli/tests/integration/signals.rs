//! The effect of signals on a server, at any time of its life.
#![cfg(unix)]

use std::io::BufReader;
use std::process::Stdio;

use crate::process::{Server, read_until};

fn piped(arguments: &[&str]) -> Server {
    Server::start(arguments, |c| {
        c.stdout(Stdio::piped()).stderr(Stdio::piped());
    })
}

#[test]
fn sigterm_while_the_model_is_loaded_ends_the_server() {
    for signal in ["TERM", "INT"] {
        let mut server = piped(&[]);
        drop(server.connect());
        server.signal(signal);
        assert_eq!(server.end().code(), Some(0), "{signal}");
    }
}

#[test]
fn sigterm_right_after_the_start_ends_the_server() {
    for signal in ["TERM", "INT"] {
        let mut server = piped(&[]);
        let mut out = BufReader::new(server.process.stdout.take().unwrap());
        read_until(&mut out, "Serving on");
        server.signal(signal);
        assert_eq!(server.end().code(), Some(0), "{signal}");
    }
}

/// The rest may come within a moment, or never: the client is told that the server ends.
#[test]
fn a_request_that_is_half_sent_at_sigterm_is_answered() {
    let mut server = piped(&[]);
    server.ready();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let halves = [head.to_owned(), format!("{head}content-length: 100\r\n\r\n{{"), "GE".to_owned()];
    let mut half_sent: Vec<_> = halves.iter().map(|half| (half, server.connect())).collect();
    for (half, stream) in &mut half_sent {
        std::io::Write::write_all(stream, half.as_bytes()).unwrap();
    }
    // What has come is read before the server answers another connection.
    server.ready();
    server.signal("TERM");
    for (half, stream) in half_sent {
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut BufReader::new(stream), &mut answer).unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 503 ") && answer.contains("shutting_down"),
            "{half:?}: {answer:?}"
        );
        assert!(answer.to_ascii_lowercase().contains("connection: close"), "{half:?}: {answer:?}");
    }
    assert_eq!(server.end().code(), Some(0));
}

#[test]
fn a_second_signal_ends_running_streams_at_once() {
    for (signal, status) in [("TERM", 143), ("INT", 130)] {
        let mut server = piped(&["--shutdown-timeout", "3600"]);
        let mut log = BufReader::new(server.process.stderr.take().unwrap());
        server.ready();
        // Its body is never complete, so the server waits for it as for any running request.
        let mut waiting = server.connect();
        let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{";
        std::io::Write::write_all(&mut waiting, head.as_bytes()).unwrap();
        let long = r#"{"model": "throng-starter", "prompt": "Hi", "stream": true, "max_tokens": 400, "n": 64,
            "ignore_eos": true}"#;
        let mut stream = server.begin("POST", "/v1/completions", long);
        read_until(&mut stream, "data: {");
        server.signal(signal);
        read_until(&mut log, "running streams may finish");
        server.signal(signal);
        assert_eq!(server.end().code(), Some(status), "{signal}");
        read_until(&mut log, "a second signal ends the server at once");
    }
}

#[test]
fn sighup_is_ignored() {
    let mut server = piped(&[]);
    let mut log = BufReader::new(server.process.stderr.take().unwrap());
    drop(server.connect());
    server.signal("HUP");
    read_until(&mut log, "SIGHUP is ignored");
    server.assert_serves();
    server.signal("HUP");
    read_until(&mut log, "SIGHUP is ignored");
    server.signal("PIPE");
    server.assert_serves();
    server.signal("TERM");
    assert_eq!(server.end().code(), Some(0));
}
