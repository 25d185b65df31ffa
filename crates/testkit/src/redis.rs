//! A Redis server of a test's own, from Debian's package: started on a free port without files, stopped,
//! frozen and emptied as the test requires.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::shared_files::note_skipped;

/// The longest wait of a failing test.
const PATIENCE: Duration = Duration::from_secs(60);
const PROGRAM: &str = "/usr/bin/redis-server";

/// A running server. It is killed when dropped.
#[derive(Debug)]
pub struct RedisServer {
    port: u16,
    server: Child,
}

impl RedisServer {
    /// Starts a server. `None`, with a message, if Redis is not installed.
    ///
    /// # Panics
    /// When it is installed and does not start.
    pub fn start() -> Option<Self> {
        if !Path::new(PROGRAM).exists() {
            note_skipped("Redis: /usr/bin/redis-server is absent (apt-get install redis-server)");
            return None;
        }
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
        let server = Self { port, server: run(port) };
        server.wait_until_ready();
        Some(server)
    }

    /// URL of the server.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Kills it at once, with all its data.
    ///
    /// # Panics
    /// When there is no program `kill`.
    pub fn stop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }

    /// Starts a stopped server again, empty.
    ///
    /// # Panics
    /// When it does not start.
    pub fn restart(&mut self) {
        self.server = run(self.port);
        self.wait_until_ready();
    }

    /// Stops its process: requests get no answer, and connections stay open.
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    /// Continues the stopped server.
    pub fn thaw(&self) {
        self.signal("CONT");
    }

    /// Deletes all keys.
    ///
    /// # Panics
    /// When it does not answer.
    pub fn flush(&self) {
        use std::io::{Read, Write};
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("a connection");
        stream.write_all(b"FLUSHALL\r\n").expect("sent");
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).expect("an answer");
        assert_eq!(&answer, b"+OK\r\n");
    }

    fn signal(&self, signal: &str) {
        let pid = self.server.id().to_string();
        let _ = Command::new("kill").args([&format!("-{signal}"), &pid]).status();
    }

    fn wait_until_ready(&self) {
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(begun.elapsed() < PATIENCE, "Redis does not start");
            sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.thaw();
        self.stop();
    }
}

fn run(port: u16) -> Child {
    let settings = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--daemonize", "no"];
    Command::new(PROGRAM)
        .args(["--port", &port.to_string()])
        .args(settings)
        .current_dir(std::env::temp_dir())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server starts")
}
