//! Runs the real binary as a process with standard streams of the test's choice, and sends it HTTP/1.1
//! requests. Does not know what is tested.
#![allow(dead_code, reason = "no test file uses all of it")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Longer than anything here takes on a slow and busy machine: only a hang exceeds it.
pub const LIMIT: Duration = Duration::from_secs(120);
/// Between two looks at something that takes its time.
pub const POLL: Duration = Duration::from_millis(10);

/// The binary with `arguments`, without settings from this process's environment.
pub fn throng(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("THRONG_")) {
        command.env_remove(name);
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

/// A server on a port of the test's choice; killed when dropped.
pub struct Server {
    pub process: Child,
    pub port: u16,
}

impl Server {
    /// Starts `serve` with the starter model. `settle` sets the standard streams and the environment.
    pub fn start(arguments: &[&str], settle: impl FnOnce(&mut Command)) -> Self {
        let port = free_port();
        let mut command = throng(&["serve", "--threads", "2", "--port", &port.to_string()]);
        command.args(arguments);
        settle(&mut command);
        Self { process: command.spawn().unwrap(), port }
    }

    /// Waits until the port is bound, which is before the model is loaded.
    pub fn connect(&mut self) -> TcpStream {
        let until = Instant::now() + LIMIT;
        loop {
            match TcpStream::connect(("127.0.0.1", self.port)) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(LIMIT)).unwrap();
                    stream.set_write_timeout(Some(LIMIT)).unwrap();
                    return stream;
                }
                Err(error) => {
                    let ended = self.process.try_wait().unwrap();
                    assert!(ended.is_none() && Instant::now() < until, "{error}; ended: {ended:?}");
                    std::thread::sleep(POLL);
                }
            }
        }
    }

    /// Sends a request on a connection of its own and returns the whole answer, head and body.
    pub fn ask(&mut self, method: &str, path: &str, body: &str) -> String {
        let mut answer = String::new();
        self.begin(method, path, body).read_to_string(&mut answer).unwrap();
        answer
    }

    /// Sends a request and returns the connection to read the answer from.
    pub fn begin(&mut self, method: &str, path: &str, body: &str) -> BufReader<TcpStream> {
        let mut stream = self.connect();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + body).as_bytes()).unwrap();
        BufReader::new(stream)
    }

    /// Waits until the model is loaded.
    pub fn ready(&mut self) {
        let until = Instant::now() + LIMIT;
        while !self.ask("GET", "/health", "").starts_with("HTTP/1.1 200 ") {
            assert!(Instant::now() < until, "the model was never loaded");
            std::thread::sleep(POLL);
        }
    }

    /// Checks that a chat is answered and the health check succeeds, once the model is loaded.
    pub fn assert_serves(&mut self) {
        self.ready();
        let chat = self.ask(
            "POST",
            "/v1/chat/completions",
            r#"{"model": "throng-starter", "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}"#,
        );
        assert!(chat.starts_with("HTTP/1.1 200 ") && chat.contains("finish_reason"), "{chat}");
        let health = self.ask("GET", "/health", "");
        assert!(health.starts_with("HTTP/1.1 200 "), "{health}");
    }

    /// Sends the signal of this name.
    pub fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.process.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success(), "{kill}");
    }

    /// Waits until the process has ended.
    pub fn end(&mut self) -> ExitStatus {
        end(&mut self.process)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits until the process has ended; kills it when it does not.
pub fn end(process: &mut Child) -> ExitStatus {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(status) = process.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > until {
            process.kill().unwrap();
            panic!("the process did not end");
        }
        std::thread::sleep(POLL);
    }
}

/// Reads lines until one contains `words`.
pub fn read_until(lines: &mut impl BufRead, words: &str) {
    let mut read = String::new();
    while !read.lines().last().is_some_and(|line| line.contains(words)) {
        assert!(lines.read_line(&mut read).unwrap() > 0, "{words:?} never came: {read}");
    }
}

/// A port that is free and that no other test of this process was given.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().unwrap();
    loop {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        if given.insert(port) {
            return port;
        }
    }
}
