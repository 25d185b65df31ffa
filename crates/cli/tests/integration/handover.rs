//! A server hands its socket over to a new process (SIGUSR2) while clients ask without a pause: nobody is
//! refused, no answer is cut, and a new process that does not get ready costs nothing. `THRONG_RESTARTS` sets
//! the number of restarts.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use crate::process::{LIMIT, POLL, Server, free_port, throng};

const N_CLIENTS: usize = 3;

/// One complete answer on a connection of its own.
fn ask(port: u16) -> String {
    let body = r#"{"model": "throng-starter", "max_tokens": 24, "temperature": 0, "stream": true, "ignore_eos": true,
        "request_id": "the-same", "messages": [{"role": "user", "content": "Tell me about the sea."}]}"#;
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the socket listens all the time");
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("data: [DONE]"), "{answer}");
    let content = |line: &str| Some(line.split_once("\"content\":")?.1.split_once('}')?.0.to_owned());
    answer.lines().filter_map(content).collect()
}

fn signal(pid: u32, name: &str) {
    let kill = format!("kill -{name} {pid}");
    assert!(Command::new("sh").args(["-c", &kill]).status().expect("a shell").success(), "{kill}");
}

/// A line of the log with these words. All processes write to one pipe.
fn line_with(log: &mut BufReader<ChildStderr>, words: &str) -> String {
    let mut line = String::new();
    while !line.contains(words) {
        line.clear();
        assert!(log.read_line(&mut line).expect("text") > 0, "{words:?} never came");
    }
    line
}

/// Waits until a process that may be no child has ended.
fn until_ended(pid: u32) {
    let until = Instant::now() + LIMIT;
    let is_zombie =
        |status: &str| status.lines().any(|line| line.starts_with("State:") && line.contains('Z'));
    while let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status"))
        && !is_zombie(&status)
    {
        assert!(Instant::now() < until, "process {pid} never ended");
        std::thread::sleep(POLL);
    }
}

/// A server that is exchanged for another one again and again; its last process is ended when it is dropped.
struct Exchanged {
    first: Server,
    log: BufReader<ChildStderr>,
    pid: u32,
}

impl Exchanged {
    fn start(arguments: &[&str]) -> Self {
        let port = free_port();
        let mut command = throng(arguments);
        command.args(["--port", &port.to_string()]).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("the binary runs");
        let (log, pid) = (BufReader::new(process.stderr.take().expect("a pipe")), process.id());
        let mut first = Server { process, port };
        first.ready();
        Self { first, log, pid }
    }

    /// Exchanges the process; the new one has another number.
    fn exchange(&mut self) {
        signal(self.pid, "USR2");
        let line = line_with(&mut self.log, "goes on with the sockets");
        let pid = line.split_once("process ").expect("a number").1.split(' ').next().expect("a number");
        let old = std::mem::replace(&mut self.pid, pid.parse().expect("a number"));
        until_ended(old);
    }

    /// The file of settings is broken, so that a new process ends at once: the old one goes on.
    fn fail_to_exchange(&mut self, config: &Path) {
        let settings = std::fs::read(config).expect("the file");
        std::fs::write(config, "nonsense").expect("written");
        signal(self.pid, "USR2");
        line_with(&mut self.log, "did not get ready");
        std::fs::write(config, settings).expect("written");
    }
}

impl Drop for Exchanged {
    fn drop(&mut self) {
        if self.pid != self.first.process.id() {
            signal(self.pid, "KILL");
        }
    }
}

fn restart_under_load(arguments: &[&str], config: &Path) {
    let n_restarts = std::env::var("THRONG_RESTARTS").map_or(3, |n| n.parse().expect("a number"));
    let mut server = Exchanged::start(arguments);
    let port = server.first.port;
    let expected = ask(port);
    assert!(!expected.is_empty());
    let (is_over, n_answers) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..N_CLIENTS {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    let answer = std::panic::catch_unwind(|| ask(port));
                    let answer = answer.unwrap_or_else(|fault| {
                        is_over.store(true, Ordering::Release);
                        std::panic::resume_unwind(fault)
                    });
                    assert_eq!(answer, expected);
                    n_answers.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        server.fail_to_exchange(config);
        for _ in 0..n_restarts {
            server.exchange();
        }
        is_over.store(true, Ordering::Release);
    });
    let last = ask(port);
    assert_eq!(last, expected);
    println!("{n_restarts} restarts, {} answers, 0 failed", n_answers.into_inner());
}

#[test]
fn a_server_is_exchanged_under_load() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("server.toml");
    std::fs::write(&config, "").expect("written");
    let path = config.to_str().expect("a path");
    restart_under_load(&["serve", "--threads", "1", "--kv-cache-memory", "48MiB", "--config", path], &config);
}

/// Runs `throng handover` for a process; its status and what it says.
fn hand_over(pid: u32, command: &str) -> (Option<i32>, String) {
    let output = throng(&[command, "--pid", &pid.to_string()]).output().expect("the binary runs");
    let told = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(told).expect("text"))
}

#[test]
fn the_command_hands_over_and_says_how_it_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("server.toml");
    std::fs::write(&config, "").expect("written");
    let path = config.to_str().expect("a path");
    let mut server =
        Exchanged::start(&["serve", "--threads", "1", "--kv-cache-memory", "48MiB", "--config", path]);
    let port = server.first.port;
    let expected = ask(port);
    // The new process cannot start.
    std::fs::write(&config, "nonsense").expect("written");
    let (status, told) = hand_over(server.pid, "handover");
    assert_eq!(status, Some(1), "{told}");
    assert!(told.contains(&format!("process {} goes on", server.pid)), "{told}");
    std::fs::write(&config, "").expect("written");
    assert_eq!(ask(port), expected);
    for command in ["handover", "reload"] {
        let (status, told) = hand_over(server.pid, command);
        assert_eq!(status, Some(0), "{told}");
        assert!(told.ends_with(&format!("goes on in the place of process {}\n", server.pid)), "{told}");
        let new = told.strip_prefix("process ").and_then(|rest| rest.split(' ').next()).expect("a number");
        until_ended(std::mem::replace(&mut server.pid, new.parse().expect("a number")));
        assert_eq!(ask(port), expected);
    }
    let log = line_with(&mut server.log, "goes on with the sockets");
    assert!(log.contains("process"), "{log}");
}

#[test]
fn no_other_process_gets_the_signal() {
    let mut other = Command::new("sleep").arg("600").spawn().expect("it runs");
    let (status, told) = hand_over(other.id(), "handover");
    assert_eq!(status, Some(1), "{told}");
    assert!(told.contains("is no server of Throng's that can hand over"), "{told}");
    assert!(other.try_wait().expect("its state").is_none(), "it was ended");
    other.kill().expect("ended");
    other.wait().expect("ended");
    // A command that would be ended by the signal.
    let mut chat = throng(&["chat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    let (status, told) = hand_over(chat.id(), "handover");
    assert_eq!(status, Some(1), "{told}");
    assert!(chat.try_wait().expect("its state").is_none(), "it was ended");
    chat.kill().expect("ended");
    chat.wait().expect("ended");
    let (status, told) = hand_over(i32::MAX as u32 - 1, "handover");
    assert!(status == Some(1) && told.contains("there is no process"), "{told}");
}

#[test]
fn a_gateway_is_exchanged_under_load() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("gateway.toml");
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let mut command =
        throng(&["worker", "--listen", &listen, "--threads", "1", "--kv-cache-memory", "48MiB"]);
    let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary runs");
    let _worker = Server { process, port };
    std::fs::write(&config, format!("[[replica]]\nurl = \"throng://{listen}\"\n")).expect("written");
    restart_under_load(&["gateway", "--config", config.to_str().expect("a path")], &config);
}

#[test]
fn every_listener_goes_to_the_new_process() {
    let (operators, ollamas) = (free_port(), free_port());
    let (admin_listen, ollama) = (format!("127.0.0.1:{operators}"), format!("--ollama={ollamas}"));
    let small = ["--threads", "1", "--kv-cache-memory", "48MiB"];
    let more = ["--admin-key", "operators-key", "--admin-listen", &admin_listen, &ollama];
    let mut server = Exchanged::start(&[&["serve"][..], &small, &more].concat());
    let expected = ask(server.first.port);
    for _ in 0..2 {
        server.exchange();
        assert_eq!((ask(server.first.port), ask(ollamas)), (expected.clone(), expected.clone()));
        TcpStream::connect(("127.0.0.1", operators)).expect("the operator's socket listens");
    }
}
