//! The start of a server: what is checked before anything is loaded, what clients are told meanwhile, and
//! what systemd is told.
#![cfg(unix)]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use crate::process::{LIMIT, Server, end, throng};

/// A hub that accepts connections and never answers, so that a model of it is loaded for ever.
struct SilentHub {
    listener: TcpListener,
    home: tempfile::TempDir,
}

impl SilentHub {
    fn new() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").unwrap(), home: tempfile::tempdir().unwrap() }
    }

    fn settle(&self, command: &mut Command) {
        let endpoint = format!("http://{}", self.listener.local_addr().unwrap());
        command.env("HF_ENDPOINT", endpoint).env("HF_HOME", self.home.path());
    }
}

/// The standard error of a server that must end with an error before it loads its model.
fn refused(arguments: &[&str]) -> String {
    let hub = SilentHub::new();
    let mut command = throng(&["serve", "org/name"]);
    hub.settle(command.args(arguments).stdout(Stdio::null()).stderr(Stdio::piped()));
    let mut process = command.spawn().unwrap();
    assert_eq!(end(&mut process).code(), Some(1), "{arguments:?}");
    let mut told = String::new();
    process.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    told
}

#[test]
fn an_unsafe_address_and_bad_keys_are_refused_before_loading() {
    let told = refused(&["--host", "0.0.0.0", "--port", "0"]);
    assert!(told.contains("without an API key: set one with --api-key"), "{told}");
    let told = refused(&["--port", "0", "--api-key", "good,not good"]);
    assert!(told.contains("API key number 2 is empty") && !told.contains("not good"), "{told}");
}

#[test]
fn a_taken_port_names_the_flag() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let told = refused(&["--port", &port]);
    assert!(told.contains("choose another port with --port"), "{told}");
}

#[test]
fn a_server_that_loads_its_model_answers_health_checks() {
    let hub = SilentHub::new();
    let mut server = Server::start(&["org/name"], |command| hub.settle(command));
    for (path, status) in [("/health", 503), ("/health/ready", 503), ("/health/live", 200)] {
        let answer = server.ask("GET", path, "");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert_eq!(status == 503, answer.contains("\"model_not_ready\""), "{answer}");
    }
    let chat = server.ask("POST", "/v1/chat/completions", "{}");
    assert!(chat.starts_with("HTTP/1.1 503 ") && chat.contains("retry-after: "), "{chat}");
    server.signal("TERM");
    assert_eq!(server.end().code(), Some(0));
}

#[test]
fn systemd_is_told_when_the_server_is_ready_lives_and_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(LIMIT)).unwrap();
    let receive_until = |words: &str| {
        let mut all = String::new();
        while !all.contains(words) {
            let mut message = [0; 4096];
            let n = manager.recv(&mut message).expect(words);
            all += std::str::from_utf8(&message[..n]).unwrap();
            all.push('\n');
        }
        all
    };
    let mut server = Server::start(&[], |command| {
        command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "200000");
    });
    let before = receive_until("READY=1");
    assert!(before.contains("STATUS=loading the model"), "{before}");
    receive_until("WATCHDOG=1");
    receive_until("WATCHDOG=1");
    server.signal("TERM");
    receive_until("STOPPING=1");
    assert_eq!(server.end().code(), Some(0));
}

#[test]
fn a_socket_that_systemd_opened_is_used() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // Queued before the server is started, and answered when it is there.
    let mut early = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    early.write_all(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut command = throng(&[]);
    let binary = command.get_program().to_owned();
    command = Command::new("sh");
    let script = "exec 3<&0 </dev/null; export LISTEN_FDS=1 LISTEN_PID=$$; exec \"$0\" \"$@\"";
    command.args(["-c", script]).arg(binary).args(["serve", "--threads", "2", "--port", "1"]);
    command.stdin(Stdio::from(OwnedFd::from(listener)));
    let mut server = Server { process: command.spawn().unwrap(), port };
    early.set_read_timeout(Some(LIMIT)).unwrap();
    let mut answer = String::new();
    early.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    server.assert_serves();
    server.signal("TERM");
    assert_eq!(server.end().code(), Some(0));
}

#[test]
fn a_unix_socket_takes_the_place_of_an_ended_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("throng.sock");
    let path_text = path.to_str().unwrap();
    let start = || {
        let mut process =
            throng(&["serve", "--threads", "2", "--uds", path_text]).stdout(Stdio::piped()).spawn().unwrap();
        crate::process::read_until(
            &mut std::io::BufReader::new(process.stdout.take().unwrap()),
            "Serving on unix:",
        );
        process
    };
    let ask = |request: &str| {
        let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let mut killed = start();
    // A proxy forwards its own name.
    let answer = ask("GET /v1/models HTTP/1.1\r\nhost: models.example.org\r\nconnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let body = r#"{"model": "throng-starter", "max_tokens": 4, "prompt": "Hi"}"#;
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = ask(&request);
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("finish_reason"), "{answer}");
    let foreign = request.replace("host: x", "host: x\r\norigin: https://evil.example");
    assert!(ask(&foreign).starts_with("HTTP/1.1 403 "));
    let told = refused(&["--uds", path_text]);
    assert!(told.contains("another program listens there"), "{told}");
    killed.kill().unwrap();
    killed.wait().unwrap();
    let mut again = start();
    let kill = format!("kill -TERM {}", again.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    assert_eq!(end(&mut again).code(), Some(0));
    assert!(!path.exists(), "the file is removed");
    std::fs::write(&path, "something else").unwrap();
    let told = refused(&["--uds", path_text]);
    assert!(told.contains("a file that is no socket") && path.exists(), "{told}");
}

#[test]
fn certificates_are_read_before_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cert.pem");
    std::fs::write(&file, "nothing").unwrap();
    let file = file.to_str().unwrap();
    let told = refused(&["--port", "0", "--ssl-certfile", file, "--ssl-keyfile", file]);
    assert!(told.contains("cert.pem: no certificate in PEM"), "{told}");
    let told = refused(&["--port", "0", "--ssl-certfile", "/nowhere/cert", "--ssl-keyfile", file]);
    assert!(told.contains("/nowhere/cert: "), "{told}");
}
